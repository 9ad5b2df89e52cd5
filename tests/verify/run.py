"""`make verify`: run every check of docs/verify.md and print PASS or FAIL, with figures.

    python -m tests.verify.run [--only N]... [--skip-fresh-clone] [--list]

Exits with 1 if any check fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to run this file as a script

from tests.verify.lab import NAMES, Report, make_lab, run_check, title_of

CHECKS = {number: import_module(f"tests.verify.{name}") for number, name in enumerate(NAMES, 1)}
"""The modules of the checks of docs/verify.md by number. Each has a function `verify`."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check that the server does what docs/verify.md says.")
    parser.add_argument(
        "--only", type=int, action="append", choices=CHECKS, help="run this check only; repeatable"
    )
    parser.add_argument("--skip-fresh-clone", action="store_true", help="skip check 1, the longest")
    parser.add_argument("--list", action="store_true", help="print the checks and exit")
    return parser.parse_args(arguments)


def summary(reports: list[Report], skipped: list[int]) -> None:
    print("\nSummary", flush=True)
    for report in reports:
        print(f"{'PASS' if report.passed else 'FAIL'} {report.number}. {report.title}")
        for failure in report.failures:
            print(f"       NOT {failure}")
    for number in skipped:
        print(f"---- {number}. {title_of(CHECKS[number])} (not run)")
    print(f"{sum(report.passed for report in reports)} of {len(reports)} checks run passed", flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for number, check in CHECKS.items():
            print(f"{number}. {title_of(check)}\n   python -m {check.__name__}")
        return 0
    selected = [number for number in CHECKS if options.only is None or number in options.only]
    if options.skip_fresh_clone:
        selected = [number for number in selected if number != 1]
    lab = make_lab()
    reports = [run_check(CHECKS[number].verify, lab) for number in selected]
    summary(reports, [number for number in CHECKS if number not in selected])
    if all(report.passed for report in reports):
        shutil.rmtree(lab.folder)
        return 0
    print(f"logs: {lab.folder}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
