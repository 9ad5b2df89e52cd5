"""`make verify`: run every line of docs/verify.md and print PASS or FAIL, with figures.

    python -m tests.verify.run [--only N]... [--skip-fresh-clone] [--list]

Exits with 1 if any line fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to run this file as a script

from tests.verify.lab import NAMES, Report, make_lab, run_check, title_of

LINES = {number: import_module(f"tests.verify.{name}") for number, name in enumerate(NAMES, 1)}
"""The modules of the lines of docs/verify.md by number. Each has a function `verify`."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check that the server does what docs/verify.md says.")
    parser.add_argument(
        "--only", type=int, action="append", choices=LINES, help="run this line only; repeatable"
    )
    parser.add_argument("--skip-fresh-clone", action="store_true", help="skip line 1, the longest")
    parser.add_argument("--list", action="store_true", help="print the lines and exit")
    return parser.parse_args(arguments)


def summary(reports: list[Report], skipped: list[int]) -> None:
    print("\nSummary", flush=True)
    for report in reports:
        print(f"{'PASS' if report.passed else 'FAIL'} {report.number}. {report.title}")
        for failure in report.failures:
            print(f"       NOT {failure}")
    for number in skipped:
        print(f"---- {number}. {title_of(LINES[number])} (not run)")
    print(f"{sum(report.passed for report in reports)} of {len(reports)} lines run passed", flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for number, line in LINES.items():
            print(f"{number}. {title_of(line)}\n   python -m {line.__name__}")
        return 0
    selected = [number for number in LINES if options.only is None or number in options.only]
    if options.skip_fresh_clone:
        selected = [number for number in selected if number != 1]
    lab = make_lab()
    reports = [run_check(LINES[number].verify, lab) for number in selected]
    summary(reports, [number for number in LINES if number not in selected])
    if all(report.passed for report in reports):
        shutil.rmtree(lab.folder)
        return 0
    print(f"logs: {lab.folder}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
