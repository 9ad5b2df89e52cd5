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
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to run this file as a script

from tests.verify.lab import Report, make_lab, run_check

_MODULES = """
fresh_clone token_equality rolling leaving_clients failures startup malformed dynamic_equality aws_post s3_faults
clients differing_parameters s3_serve scheduler_properties schedules kv_waste prefix_cache overlay scheduler_cost
sampling batch_invariance kernels_without_gpu architectures late_steps gpu_results instruction_sets random_examples
front_door comparison_errors s3_speed quantization sanitizers tokenizers foreign_models image tuning several_models
endpoint simulation other_clients real_comparisons report_page
"""
LINES = [import_module(f"tests.verify.{name}") for name in _MODULES.split()]
"""The modules of the lines of docs/verify.md. Each has a `NUMBER`, a `TITLE` and a function `verify`."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check that the server does what docs/verify.md says.")
    numbers = [line.NUMBER for line in LINES]
    parser.add_argument(
        "--only", type=int, action="append", choices=numbers, help="run this line only; repeatable"
    )
    parser.add_argument("--skip-fresh-clone", action="store_true", help="skip line 1, the longest")
    parser.add_argument("--list", action="store_true", help="print the lines and exit")
    return parser.parse_args(arguments)


def summary(reports: list[Report], skipped: list[ModuleType]) -> None:
    print("\nSummary", flush=True)
    for report in reports:
        print(f"{'PASS' if report.passed else 'FAIL'} {report.number}. {report.title}")
        for failure in report.failures:
            print(f"       NOT {failure}")
    for line in skipped:
        print(f"---- {line.NUMBER}. {line.TITLE} (not run)")
    print(f"{sum(report.passed for report in reports)} of {len(reports)} lines run passed", flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for line in LINES:
            print(f"{line.NUMBER}. {line.TITLE}\n   python -m {line.__name__}")
        return 0
    selected = [line for line in LINES if options.only is None or line.NUMBER in options.only]
    if options.skip_fresh_clone:
        selected = [line for line in selected if line.NUMBER != 1]
    lab = make_lab()
    reports = [run_check(line.NUMBER, line.TITLE, line.verify, lab) for line in selected]
    summary(reports, [line for line in LINES if line not in selected])
    if all(report.passed for report in reports):
        shutil.rmtree(lab.folder)
        return 0
    print(f"logs: {lab.folder}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
