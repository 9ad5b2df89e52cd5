"""The `lmi` command."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import click

from container.failures import reported
from engines.registry import Registry

_COMMANDS = Registry(
    {
        "bench": "container.measure.bench.bench_command:bench",
        "check": "container.explain.check_command:check",
        "compare": "container.measure.compare.compare_command:compare",
        "deploy": "container.deploy.deploy_command:deploy",
        "endpoint": "container.endpoint.endpoint_command:endpoint",
        "kv-waste": "container.measure.kv_waste_command:kv_waste",
        "models": "container.explain.models_command:models",
        "options": "container.explain.options_command:options",
        "prepare": "container.models.prepare_command:prepare",
        "profile": "container.measure.profile_command:profile",
        "report": "container.measure.report.report_command:report",
        "serve": "container.serve_command:serve",
        "simulate": "container.measure.simulate.simulate_command:simulate",
        "tune": "container.measure.tune.tune_command:tune",
    }
)
"""Commands by name. A module is imported only when its command is called, so that other commands start faster."""


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # as a shell reports it for a program without a handler


def _replace_closed_streams() -> None:
    """Open /dev/null as each of stdin, stdout and stderr that is closed, also for child processes.

    A file or socket would get its number otherwise.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, "r" if name == "stdin" else "w"))


class _Commands(click.Group):
    def main(self, *args: Any, **options: Any) -> Any:
        if os.getpid() == 1:  # of a container: the kernel drops signals that have no handler
            signal.signal(signal.SIGTERM, _stop)
        _replace_closed_streams()
        return super().main(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with reported():
            return super().invoke(ctx)


@click.group(cls=_Commands, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lmi-server", message="LMI Server %(version)s")
def main() -> None:
    """LMI Server: serve and benchmark language models configured by a serving.properties file."""
