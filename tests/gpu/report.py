"""`python -m tests.gpu.report [FOLDER...] > docs/gpu-results.md`: make a page of the results of `tests.gpu.check`. If a
part ran several times, its last run counts. Parts without results are listed as not run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.plan import PARTS
from tests.gpu.records import FILE, Run, read
from tests.gpu.targets import TARGETS

NOT_RUN = "not run"
_UNCOVERED = (
    "tensor parallelism over several GPUs: NCCL runs with one rank only",
    "the server itself on a GPU: start-up, `/ping` while graphs are captured, drain, a failing device",
    "engine=Python on a GPU",
    "the container image",
    "real checkpoints: all models here have random weights",
    "GPUs other than the one named above; kernels are compiled for sm_80, sm_86 and sm_90 without one",
)


def render(runs: Sequence[Run]) -> str:
    """Return the page.

    Raises:
        ValueError: results come from a smoke run, or from a part that does not exist.
    """
    by_part: dict[str, Run] = {}
    for run in runs:
        part = run["part"]
        if run["smoke"]:
            raise ValueError(f"the results of {part} are of a smoke run: its figures mean nothing")
        if part not in PARTS:
            raise ValueError(f"there is no part {part!r}; parts are {', '.join(PARTS)}")
        by_part[part] = run
    lines = ["# Results on a GPU", "", *_introduction(by_part), "## Parts", "", *_parts(by_part), ""]
    lines += ["## Targets", "", *_targets(by_part), ""]
    lines += ["## What no part covers", "", "Not run on a GPU, and not by `make gpu-check`:", ""]
    lines += [f"- {each}" for each in _UNCOVERED] + [""]
    for part in PARTS:
        if part in by_part:
            lines += [f"## {part}: {PARTS[part].title}", "", *_entries(by_part[part]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _introduction(by_part: Mapping[str, Run]) -> list[str]:
    lines = [
        "Made by `python -m tests.gpu.report`, from what `make gpu-check` writes. Shares are of ceilings that the same",
        "process has measured (copy bandwidth, a bf16 matrix product on random data), or of the floor that they give:",
        "max(bytes / copy bandwidth, operations / matmul rate) of attention, and of the matrix products, summed. All",
        "models have random weights.",
        "",
    ]
    if not by_part:
        return [*lines, "Nothing here has been run on a GPU yet.", ""]
    devices = {_words(run["device"]) for run in by_part.values() if run["device"]}
    versions = {_words(run["versions"]) for run in by_part.values() if run["versions"]}
    lines += [f"- device: {each}" for each in sorted(devices)]
    lines += [f"- versions: {each}" for each in sorted(versions)]
    return [*lines, ""]


def _parts(by_part: Mapping[str, Run]) -> Iterator[str]:
    yield "| part | what | state | date |"
    yield "|---|---|---|---|"
    for name, part in PARTS.items():
        run = by_part.get(name)
        yield f"| {name} | {part.title} | {_state(run)} | {run['date'] if run else ''} |"


def _state(run: Run | None) -> str:
    if run is None:
        return NOT_RUN
    wrong = sum(entry["passed"] is False for entry in run["entries"])
    state = f"run in {run['seconds']:.0f} s"
    if not run["finished"]:
        state = f"**cut short**{': ' if run['stopped'] else ''}{run['stopped']}"
    return state + (f", **{wrong} of {len(run['entries'])} not as they should be**" if wrong else "")


def _targets(by_part: Mapping[str, Run]) -> Iterator[str]:
    yield "| what | must be | is | |"
    yield "|---|---|---|---|"
    for key, target in TARGETS.items():
        entries = by_part.get(target.part, {}).get("entries", ())
        found = [entry for entry in entries if entry["target"] == key]
        if not found:
            state = "not measured" if target.part in by_part else NOT_RUN
            yield f"| {target.title} | {target.words} | {state} | |"
            continue
        # Of several measurements show the worst.
        worst = (max if target.at_most else min)(found, key=lambda entry: entry["share"])
        verdict = "PASS" if worst["passed"] else "**FAIL**"
        title = (
            target.title if len(found) == 1 else f"{target.title} (least of {len(found)}: {worst['name']})"
        )
        yield f"| {title} | {target.words} | {target.amount(worst['share'])} | {verdict} |"


def _entries(run: Run) -> Iterator[str]:
    yield "| what | value | share | | |"
    yield "|---|---|---|---|---|"
    for entry in run["entries"]:
        value = "" if entry["value"] is None else f"{entry['value']:.4g} {entry['unit']}"
        if entry["low"] is not None:
            value += f" ({entry['low']:.4g} to {entry['high']:.4g})"
        yield f"| {_cell(entry['name'])} | {value} | {_share(entry)} | {_verdict(entry)} | {_cell(entry['note'])} |"


def _share(entry: Mapping[str, Any]) -> str:
    share = entry["share"]
    if share is None:
        return ""
    target = TARGETS.get(entry["target"])
    times = target.times if target else share > 1.5
    return f"{f'{share:.2f}x' if times else f'{100 * share:.1f} %'} of {entry['of']}"


def _verdict(entry: Mapping[str, Any]) -> str:
    return {True: "PASS", False: "**FAIL**", None: ""}[entry["passed"]]


def _words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write_page(out: Path) -> None:
    """Write `results.md` next to the results. A smoke run has no figures, so it gets no page."""
    try:
        page = render(read([out / FILE]))
    except (OSError, ValueError):
        return
    (out / "results.md").write_text(page, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="where tests.gpu.check has written to")
    files = [folder / FILE for folder in parser.parse_args(argv).folders]
    try:
        sys.stdout.write(render(read(files)))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
