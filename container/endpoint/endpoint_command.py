"""`lmi endpoint`: emulate SageMaker on this machine."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path

import click

from container.endpoint import figures
from container.endpoint.app import LOCAL, EndpointServer, make_app
from container.endpoint.asynchronous import AsyncInvocations
from container.endpoint.declared import declare, read
from container.endpoint.model_data import ModelData
from container.endpoint.platform import Platform
from container.endpoint.process import Launcher
from container.endpoint.runtime import Runtime
from container.lossy_output import lossy
from container.measure.output import bullets, show
from container.models.files.s3.remote import connect
from container.progress import view_for
from container.run import launch
from container.run.serve import listen
from container.run.stop_signals import StopRequested, StopSignals


@click.command(
    epilog="FILE declares models, endpoint configurations, endpoints and alarms in TOML. GET /metrics.json returns"
    " the figures of each variant, which are also printed on exit."
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--host", default=LOCAL[0], show_default=True, help="Address to listen on. There is no authentication."
)
@click.option(
    "--port", default=9000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("endpoint-state"),
    show_default=True,
    help="Folder for container logs and model copies.",
)
def endpoint(file: Path | None, host: str, port: int, folder: Path) -> None:
    """Emulate SageMaker on this machine, to test endpoints locally.

    Serves the APIs of boto3's clients sagemaker and sagemaker-runtime; set their endpoint_url to the printed address.
    Containers are local processes of lmi serve.
    """
    environ, view = launch.environment(), view_for(sys.stdout)
    s3 = functools.cache(functools.partial(connect, environ))
    data = ModelData(folder / "models", s3)
    runtime = Runtime()
    asynchronous = AsyncInvocations(runtime, s3, view.say)
    platform = Platform(Launcher(folder / "logs", environ, data), view.say, asynchronous.forget)
    try:
        declared = read(file) if file else {}
        server = EndpointServer(make_app(platform, runtime, asynchronous, host), listen(host, port))
        with StopSignals() as signals:
            try:
                declare(declared, platform)
                server.start()
                view.say(f"endpoint_url={server.url}")
                if host not in LOCAL:
                    view.say("warning: anyone who reaches this port can start processes as your user")
                while True:
                    signals.wait(3600.0)
            except StopRequested:
                view.say("stopping")
            finally:
                signals.raising = False
                asynchronous.close()
                platform.close()
    finally:
        data.close()
    _print_figures(platform)


def _print_figures(platform: Platform) -> None:
    served = platform.figures()
    table = figures.table(served)
    if table.rows:
        with contextlib.redirect_stdout(lossy(sys.stdout)):
            show([table], bullets(figures.verdicts(served)), None)
