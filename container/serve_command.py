"""`lmi serve`."""

from __future__ import annotations

import sys

import click

from container.command_line import PATH_HELP, lenient_option, model_path
from container.multi_model.serve import router_config, serve_several
from container.progress import drop_unwritten, view_for
from container.run import launch
from container.run.serve import ServeOptions
from container.run.serve import serve as serve_until_end
from container.run.stop_signals import StopRequested, StopSignals


@click.command(epilog=PATH_HELP)
@click.argument("path", required=False)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")  # noqa: S104
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on. The default is SAGEMAKER_BIND_TO_PORT, else 8080.",
)
@lenient_option
@click.option(
    "--allow-remote-code",
    is_flag=True,
    help="Allow code that comes with a model (option.trust_remote_code) and packages from a handler's requirements.txt."
    " Same as LMI_ALLOW_REMOTE_CODE=true.",
)
def serve(path: str | None, host: str, port: int | None, lenient: bool, allow_remote_code: bool) -> None:
    """Serve the model of PATH, or the models in its folders, until SIGTERM or Ctrl-C."""
    environ, view = launch.server_environment(), view_for(sys.stdout)
    port = launch.default_port(environ) if port is None else port
    allowed = allow_remote_code or launch.remote_code_allowed(environ)
    options = ServeOptions(model_path(path), host, port, lenient, allowed)
    with StopSignals() as signals:
        try:
            if several := router_config(options, environ):
                code = serve_several(several, options, environ, view, signals)
            else:
                code = serve_until_end(options, environ, view, signals)
        except StopRequested:
            view.finish()
            view.say("stopped before the server was ready")
            code = 0
    for stream in (sys.stdout, sys.stderr):
        drop_unwritten(stream)
    sys.exit(code)
