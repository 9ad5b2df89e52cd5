"""Command-line options that name a machine to simulate, and its step times."""

from __future__ import annotations

from pathlib import Path

import click

from container.explain.target import ServingTarget
from container.measure.bench.options import Command
from container.measure.simulate.calibration import calibrate
from container.measure.simulate.roofline import Roofline
from container.measure.simulate.server import CannotSimulateError, SimulatedServer
from container.measure.simulate.step_times import StepTimes
from engines.config import MpiEngineConfig

_OPTIONS = (
    click.option("--instance", help="Machine to simulate, such as ml.g5.48xlarge."),
    click.option("--device", help="Device to simulate, such as A10G or H100, instead of an instance."),
    click.option(
        "--count", type=click.IntRange(1, 64), help="With --device: number of devices.", show_default="1"
    ),
    click.option(
        "--model",
        type=click.Path(path_type=Path),
        help="Folder with the model's config.json, if PATH's model is not on this disk.",
    ),
    click.option(
        "--calibrate",
        "step_trace",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Fit step times to this step trace (option.step_trace) instead of predicting them from data sheets.",
    ),
)


def machine_options(command: Command) -> Command:
    """Add the options `instance`, `device`, `count`, `model` and `step_trace` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def step_times(server: SimulatedServer, target: ServingTarget | None, step_trace: Path | None) -> StepTimes:
    """Return the step times of the named machine, or step times fitted to a trace. Raises CannotSimulateError."""
    if target is not None and step_trace is None:
        if target.instance is not None and target.device is None:
            raise CannotSimulateError(
                f"--instance: the speed of {target.instance.name} is not known; allowed: instances with GPUs, or"
                " --calibrate with a trace of the instance"
            )
        return Roofline(server, target)
    if step_trace is None or not isinstance(server.engine, MpiEngineConfig):
        raise CannotSimulateError(
            "--calibrate: not supported with engine=Python, which writes no step trace; allowed: engine=MPI"
        )
    return calibrate(step_trace)
