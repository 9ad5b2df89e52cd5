"""`lmi check`: explain a configuration and predict what it needs, on this machine or on named hardware."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from container import machine
from container.command_line import PATH_HELP, lenient_option, model_path
from container.explain import check as checking
from container.explain.hardware import CPU, NoSuchHardwareError, devices
from container.explain.report import SeveralReports
from container.explain.target import ServingTarget, device_target, instance_target, this_machine
from container.models import files as model_files
from container.models.model_folders import model_folders
from container.progress import view_for
from container.run import launch
from lmi_server.config import ModelSource


@click.command(epilog=PATH_HELP)
@click.argument("path", required=False)
@lenient_option
@click.option("--instance", help="Predict for an instance, such as ml.g5.48xlarge, instead of this machine.")
@click.option("--device", help=f"Predict for devices: {', '.join(devices())}.")
@click.option(
    "--count", type=click.IntRange(1, 64), help=f"Number of devices; not supported with {CPU}. Default: 1."
)
@click.option("--length", type=click.IntRange(1), help="Tokens per request. Default: option.max_model_len.")
@click.option(
    "--remote",
    is_flag=True,
    help="Read config.json (and, for S3, the headers of weight files) over the network.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    path: str | None,
    lenient: bool,
    instance: str | None,
    device: str | None,
    count: int | None,
    length: int | None,
    remote: bool,
    as_json: bool,
) -> None:
    """Explain a configuration and check it on this machine, or on an instance or devices.

    Prints all effective values and their sources, whether the configuration can be served, and predictions of memory,
    concurrent requests and start-up time.
    In a folder of several models, each model is checked as if it were alone.
    Exit codes: 0 the file is valid; 1 it is not; 2 the command line is not; 3 the named hardware cannot serve the
    model, or nothing can be predicted for it because the model is not on this disk; 4 the model's files cannot be
    read, on this disk or with --remote. Several models: 1 if any file is not valid, else 4 if any model cannot be read,
    else 3 if any cannot be served.
    """
    environ = launch.environment()
    examine = partial(
        checking.check,
        environ=environ,
        target=named_target(instance, device, count) or this_machine(machine.detect(environ)),
        lenient=lenient,
        length=length,
        describe=_fetched if remote else checking.described_in_cache,
    )
    if folders := model_folders(model_path(path), environ):
        several = SeveralReports({name: examine(folder) for name, folder in folders.items()})
        click.echo(several.to_json() if as_json else several.render())
        sys.exit(several.exit_code)
    report = examine(model_path(path))
    click.echo(report.to_json() if as_json else report.render())
    sys.exit(report.exit_code)


def named_target(instance: str | None, device: str | None, count: int | None) -> ServingTarget | None:
    """Return the hardware named on the command line, or None for this machine. Raises click.UsageError."""
    if instance and (device or count):
        wrong = "--device" if device else "--count"
        raise click.UsageError(f"{wrong}: not supported with --instance, which sets the devices")
    if count and not device:
        raise click.UsageError("--count: requires --device")
    if count and device and device.lower() == CPU.lower():
        raise click.UsageError(f"--count: not supported with --device {CPU}")
    try:
        if instance:
            return instance_target(instance)
        return device_target(device, count or 1) if device else None
    except NoSuchHardwareError as error:
        raise click.UsageError(str(error)) from error


def _fetched(source: ModelSource) -> Path | None:
    """Fetch the model without its weights into the cache; None if the model is not remote."""
    if not model_files.is_fetched(source):
        return None
    return model_files.obtain(checking.without_weights(source), view_for(sys.stderr))
