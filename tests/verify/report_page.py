"""The HTML report in headless Chromium at two widths: nothing is cut, no error, nothing loaded.

    python -m tests.verify.report_page [--keep FOLDER]

One page shows real rounds with slots from step traces, the other made-up runs of `--find-rate`. A script in a copy
of each page looks for elements beyond the window, for cut-off texts, and for plot labels outside their plot. The
page must write nothing to the console, as it would if it loaded anything. Requires Chromium (Debian: `apt-get
install chromium`). `--keep` keeps the pages and a screenshot of each.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.container.measure.report.made_up import make_search
from tests.support.paths import child_environment
from tests.support.server import properties_text
from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

WIDTHS = (1280, 520)
HEIGHT = 6000
"""Tall enough for a screenshot of the whole page."""
LOAD = ("--rounds", "2", "--users", "6", "--requests", "12", "--input-tokens", "24", "--output-tokens", "12")
LIMIT_SECONDS = 600.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"),
)
_CSP = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_MEASURE = """<script>addEventListener("load", () => {
  const cut = [], shown = (e) => e.tagName + "." + (e.getAttribute("class") || "") + ": "
    + (e.textContent || "").trim().slice(0, 40);
  const scrolls = (e) => e && (["auto", "scroll"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!box.width || style.clipPath !== "none" || e.closest("thead")) continue;
    if ((box.right > innerWidth + 1 || box.left < -1) && !scrolls(e)) cut.push("beyond the page: " + shown(e));
    if (style.overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1) cut.push("hidden: " + shown(e));
    const picture = e.tagName === "text" && e.ownerSVGElement;
    if (picture) {
      const frame = picture.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) cut.push("beyond its picture: " + shown(e));
    }
  }
  const found = document.createElement("pre");
  found.id = "measured";
  found.textContent = JSON.stringify({width: innerWidth, texts: document.querySelectorAll("svg text").length,
    pictures: document.querySelectorAll("figure svg").length, cut: cut});
  document.body.appendChild(found);
});</script></body>"""
_MEASURED = re.compile(r'<pre id="measured">(.*?)</pre>', re.DOTALL)


def verify(lab: Lab, report: Report, *, keep: str = "") -> None:
    browser = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if browser is None:
        report.require(False, f"no browser: none of {', '.join(_NAMES)} (Debian: apt-get install chromium)")
        return
    folder = Path(keep) if keep else lab.folder / "report-page"
    folder.mkdir(parents=True, exist_ok=True)
    for page in (_make_comparison(lab, folder), _make_search_report(folder)):
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                _check_page(browser, page, width, scheme, report)


def _make_comparison(lab: Lab, folder: Path) -> Path:
    """Return the report of real rounds, with slots from step traces."""
    for name, options in (("paged", {}), ("static-4", {"batch_scheduler_policy": "static_batch"})):
        (folder / name).mkdir(exist_ok=True)
        text = properties_text(lab.model, max_rolling_batch_size=4, kv_cache_gb=0.2, **options)
        (folder / name / "serving.properties").write_text(text)
    page = folder / "compared.html"
    run_lmi(folder, "compare", "paged", "static-4", *LOAD, "--report", str(page))
    return page


def _make_search_report(folder: Path) -> Path:
    """Return the report of a search for the highest rate, with made-up trials."""
    results = folder / "searched.json"
    results.write_text(json.dumps(make_search(1.0, 2.0, 4.0, 8.0)))
    command = [sys.executable, "-m", "container", "report", str(results)]
    subprocess.run(command, check=True, capture_output=True, env=child_environment(), cwd=folder)
    return results.with_suffix(".html")


def _check_page(browser: str, page: Path, width: int, scheme: str, report: Report) -> None:
    text = page.read_text(encoding="utf-8")
    measured = page.with_name(f"{page.stem}-measured.html")
    measured.write_text(_CSP.sub("", text).replace("</body>", _MEASURE), encoding="utf-8")
    done = _chromium(browser, measured, width, scheme, "--dump-dom")
    found: dict[str, Any] = json.loads(html.unescape(_MEASURED.findall(done.stdout)[-1]))
    screenshot = page.with_name(f"{page.stem}-{width}-{scheme}.png")
    plain = _chromium(browser, page, width, scheme, f"--screenshot={screenshot}")
    errors = [line for line in plain.stderr.splitlines() if "CONSOLE" in line]
    what = f"{page.stem}, {found['width']} pixels, {scheme}"
    report.require(not found["cut"], f"{what}: nothing is cut {'; '.join(found['cut'][:5])}".rstrip())
    report.require(
        not errors and found["pictures"] > 0 and screenshot.is_file(),
        f"{what}: {found['pictures']} pictures with {found['texts']} texts; no error {'; '.join(errors)}".rstrip(),
    )


def _chromium(
    browser: str, page: Path, width: int, scheme: str, option: str
) -> subprocess.CompletedProcess[str]:
    dark = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0") if scheme == "dark" else ()
    with tempfile.TemporaryDirectory() as profile:
        window = (f"--user-data-dir={profile}", f"--window-size={width},{HEIGHT}")
        command = [browser, *_FLAGS, *dark, *window, option, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS)


if __name__ == "__main__":
    run_alone(verify)
