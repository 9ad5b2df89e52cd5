"""What every check of `make verify` gets: a place to start servers, and a report to fill."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import prepare_bundled_model
from tests.support.server import Server, properties_text


@dataclass(slots=True)
class Report:
    """Figures and verdicts of one line, printed as they come."""

    number: int
    title: str
    failures: list[str] = field(default_factory=list)
    num_required: int = 0

    def figure(self, text: str) -> None:
        """Something measured, without a verdict."""
        print(f"       {text}", flush=True)

    def require(self, holds: bool, text: str) -> None:
        """One condition of the line, with what was seen. The line passes when all of them hold."""
        self.num_required += 1
        print(f"  {'ok ' if holds else 'NOT'}  {text}", flush=True)
        if not holds:
            self.failures.append(text)

    @property
    def passed(self) -> bool:
        """All conditions hold, and there was at least one."""
        return self.num_required > 0 and not self.failures


@dataclass(frozen=True, slots=True)
class Lab:
    """Where the checks run."""

    model: Path
    """The bundled model, prepared."""
    folder: Path
    """For properties files, logs and clones; removed at the end when all is well."""

    def server(self, name: str, **options: object) -> Server:
        """Start a server of the bundled model with these `option.*` values; wait for it yourself."""
        return Server(self.folder / name, properties_text(self.model, **options))

    def ready(self, name: str, **options: object) -> Server:
        """As `server`, and ready."""
        server = self.server(name, **options)
        try:
            server.wait_ready()
        except BaseException:
            server.destroy()
            raise
        return server


Check = Callable[[Lab, Report], None]


def make_lab() -> Lab:
    """Prepare the model and a folder. Raises `subprocess.CalledProcessError` when the model cannot be had."""
    model = prepare_bundled_model()
    return Lab(model, Path(tempfile.mkdtemp(prefix="lmi-verify-")))


def run_check(number: int, title: str, check: Check, lab: Lab) -> Report:
    """Run one line's check and print its verdict; an exception is a failure, not the end of the run."""
    print(f"\n{number}. {title}", flush=True)
    report = Report(number, title)
    started = time.monotonic()
    try:
        check(lab, report)
    except Exception as error:  # one line's failure must not hide what the other lines show
        traceback.print_exc()
        report.require(False, f"{type(error).__name__}: {error}")
    print(
        f"{'PASS' if report.passed else 'FAIL'} {number} after {time.monotonic() - started:.0f} s", flush=True
    )
    return report


def run_alone(number: int, title: str, check: Check) -> None:
    """What `python -m tests.verify.<name>` does: this one line, exit code 1 when it fails."""
    lab = make_lab()
    passed = run_check(number, title, check, lab).passed
    print(f"logs: {lab.folder}", flush=True)
    sys.exit(0 if passed else 1)
