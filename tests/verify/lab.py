"""Arguments of the checks of `make verify`: a lab to start servers in, and a report."""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.client import Client
from tests.support.metrics import wait_metrics
from tests.support.paths import prepare_bundled_model
from tests.support.server import Server, properties_text

_NAMES = """\
fresh_clone token_equality rolling client_disconnects failures startup malformed dynamic_equality aws_post s3_faults
clients differing_parameters s3_serve scheduler_properties schedules kv_waste prefix_cache chunked_prefill
scheduler_cost sampling batch_invariance kernels_without_gpu architectures asynchronous_scheduling gpu_results
instruction_sets random_examples slow_clients comparison_errors s3_speed quantization sanitizers tokenizers
transformers_backend image tuning several_models endpoint simulation other_clients real_comparisons report_page
cold_loading cpu_limits ranks_speed
"""
NAMES = _NAMES.split()
"""Modules of the checks of docs/verify.md, in the order of their numbers."""


@dataclass(slots=True)
class Report:
    """Figures and verdicts of one check of docs/verify.md, printed immediately."""

    number: int
    title: str
    failures: list[str] = field(default_factory=list)
    num_required: int = 0

    def figure(self, text: str) -> None:
        """Print a measurement without a verdict."""
        print(f"       {text}", flush=True)

    def require(self, holds: bool, text: str) -> None:
        """Print one condition with the measured value. The check passes if all its conditions hold."""
        self.num_required += 1
        print(f"  {'ok ' if holds else 'NOT'}  {text}", flush=True)
        if not holds:
            self.failures.append(text)

    @property
    def passed(self) -> bool:
        """True if there was at least one condition and all of them hold."""
        return self.num_required > 0 and not self.failures


@dataclass(frozen=True, slots=True)
class Lab:
    """The model and the folder that the checks use."""

    model: Path
    """The bundled model, prepared."""
    folder: Path
    """Folder for properties files, logs and clones. It is removed at the end if all checks pass."""

    def server(self, name: str, **options: object) -> Server:
        """Start a server of the bundled model with these `option.*` values. Entering it waits until it is ready."""
        return Server(self.folder / name, properties_text(self.model, **options))


def require_idle(report: Report, client: Client) -> None:
    """Require that no request runs or waits, and that all blocks are free or cached."""
    metrics = wait_metrics(client, lambda seen: seen.idle, 20.0)
    report.require(metrics.idle, metrics.describe())


Check = Callable[..., None]
"""Called with the lab and the report."""


def make_lab() -> Lab:
    """Prepare the model and a folder. Raises `subprocess.CalledProcessError` if the model is not available."""
    model = prepare_bundled_model()
    return Lab(model, Path(tempfile.mkdtemp(prefix="lmi-verify-")))


def title_of(module: ModuleType) -> str:
    """The first sentence of the module's docstring, which is what must hold."""
    return " ".join((module.__doc__ or "").split("\n\n")[0].split()).removesuffix(".")


def run_check(check: Check, lab: Lab, **options: Any) -> Report:
    """Run one check and print its verdict. An exception fails the check but does not end the run."""
    number = 1 + NAMES.index(Path(inspect.getfile(check)).stem)
    title = title_of(sys.modules[check.__module__])
    print(f"\n{number}. {title}", flush=True)
    report = Report(number, title)
    started = time.monotonic()
    try:
        check(lab, report, **options)
    except Exception as error:  # the other checks run regardless
        traceback.print_exc()
        report.require(False, f"{type(error).__name__}: {error}")
    print(
        f"{'PASS' if report.passed else 'FAIL'} {number} after {time.monotonic() - started:.0f} s", flush=True
    )
    return report


def run_alone(check: Check) -> None:
    """Run one check, as `python -m tests.verify.<name>`. Exits with 1 if the check fails.

    Keyword-only parameters of `check` are options of the command line.
    """
    parser = argparse.ArgumentParser(description=title_of(sys.modules[check.__module__]))
    for name, parameter in inspect.signature(check).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{name}", type=type(parameter.default), default=parameter.default)
    options = vars(parser.parse_args())
    lab = make_lab()
    passed = run_check(check, lab, **options).passed
    print(f"logs: {lab.folder}", flush=True)
    sys.exit(0 if passed else 1)
