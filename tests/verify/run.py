"""`make verify`: run every line of docs/verify.md and print PASS or FAIL, with figures.

    python -m tests.verify.run [--only N]... [--skip-fresh-clone] [--list]

Exits with 1 if any line fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to run this file as a script

from tests.verify import (
    architectures,
    aws_post,
    batch_invariance,
    clients,
    comparison_errors,
    differing_parameters,
    dynamic_equality,
    endpoint,
    failures,
    foreign_models,
    fresh_clone,
    front_door,
    gpu_results,
    image,
    instruction_sets,
    kernels_without_gpu,
    kv_waste,
    late_steps,
    leaving_clients,
    malformed,
    other_clients,
    overlay,
    prefix_cache,
    quantization,
    random_examples,
    real_comparisons,
    report_page,
    rolling,
    s3_faults,
    s3_serve,
    s3_speed,
    sampling,
    sanitizers,
    scheduler_cost,
    scheduler_properties,
    schedules,
    several_models,
    simulation,
    startup,
    token_equality,
    tokenizers,
    tuning,
)
from tests.verify.lab import Check, Report, make_lab, run_check


@dataclass(frozen=True, slots=True)
class Line:
    """One line of docs/verify.md."""

    number: int
    title: str
    check: Check
    module: str


LINES = tuple(
    Line(module.NUMBER, module.TITLE, module.verify, module.__name__)
    for module in (
        *(fresh_clone, token_equality, rolling, leaving_clients, failures, startup, malformed),
        *(dynamic_equality, aws_post, s3_faults, clients, differing_parameters, s3_serve),
        *(scheduler_properties, schedules, kv_waste, prefix_cache, overlay, scheduler_cost, sampling),
        *(batch_invariance, kernels_without_gpu, architectures, late_steps, gpu_results),
        *(instruction_sets, random_examples, front_door, comparison_errors, s3_speed),
        *(quantization, sanitizers, tokenizers, foreign_models, image, tuning, several_models, endpoint),
        *(simulation, other_clients, real_comparisons, report_page),
    )
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check that the server does what docs/verify.md says.")
    numbers = [line.number for line in LINES]
    parser.add_argument(
        "--only", type=int, action="append", choices=numbers, help="run this line only; repeatable"
    )
    parser.add_argument("--skip-fresh-clone", action="store_true", help="skip line 1, the longest")
    parser.add_argument("--list", action="store_true", help="print the lines and exit")
    return parser.parse_args(arguments)


def summary(reports: list[Report], skipped: list[Line]) -> None:
    print("\nSummary", flush=True)
    for report in reports:
        print(f"{'PASS' if report.passed else 'FAIL'} {report.number}. {report.title}")
        for failure in report.failures:
            print(f"       NOT {failure}")
    for line in skipped:
        print(f"---- {line.number}. {line.title} (not run)")
    print(f"{sum(report.passed for report in reports)} of {len(reports)} lines run passed", flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for line in LINES:
            print(f"{line.number}. {line.title}\n   python -m {line.module}")
        return 0
    selected = [line for line in LINES if options.only is None or line.number in options.only]
    if options.skip_fresh_clone:
        selected = [line for line in selected if line.number != fresh_clone.NUMBER]
    lab = make_lab()
    reports = [run_check(line.number, line.title, line.check, lab) for line in selected]
    summary(reports, [line for line in LINES if line not in selected])
    if all(report.passed for report in reports):
        shutil.rmtree(lab.folder)
        return 0
    print(f"logs: {lab.folder}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
