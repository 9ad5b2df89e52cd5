"""The `lmi` command."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import click

from container.command_line import PATH_HELP, lenient_option, model_path
from container.explain.resolve import CannotServe
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.bundled import BUNDLED_MODEL
from container.multi_model.serve import front_config, serve_several
from container.progress import view_for
from container.run import launch
from container.run.launch import BadVariable
from container.run.mpi import NoMpiRun
from container.run.serve import CannotListen, ServeOptions
from container.run.serve import serve as serve_until_end
from engines.registry import Registry
from lmi_server.config import ModelSource
from lmi_server.properties import reference
from lmi_server.properties.problems import PropertiesError

_WIDTH = 100


_LATER = Registry(
    {
        "check": "container.explain.check_command:check",
        "bench": "container.measure.bench.bench_command:bench",
        "deploy": "container.deploy.deploy_command:deploy",
        "compare": "container.measure.compare.compare_command:compare",
        "endpoint": "container.endpoint.endpoint_command:endpoint",
        "models": "container.explain.models_command:models",
        "kv-waste": "container.measure.kv_waste_command:kv_waste",
        "profile": "container.measure.profile_command:profile",
        "report": "container.measure.report.report_command:report",
        "simulate": "container.measure.simulate.simulate_command:simulate",
        "tune": "container.measure.tune.tune_command:tune",
    }
)
"""Commands whose modules are loaded only when they are called, so that the others start faster."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        later: click.Command | None = _LATER.get(cmd_name)
        return later or super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """LMI Server: serve and benchmark language models configured by a serving.properties file."""


@main.command(epilog=PATH_HELP)
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
    help="Allow option.trust_remote_code to run code that comes with a model. Same as LMI_ALLOW_REMOTE_CODE=true.",
)
def serve(path: str | None, host: str, port: int | None, lenient: bool, allow_remote_code: bool) -> None:
    """Serve the model of PATH, or the models in its folders, until SIGTERM or Ctrl-C."""
    environ = launch.environment()
    try:
        port = launch.default_port(environ) if port is None else port
        allowed = allow_remote_code or launch.remote_code_allowed(environ)
        options = ServeOptions(model_path(path), host, port, lenient, allowed)
        if several := front_config(options, environ):
            sys.exit(serve_several(several, options, environ, view_for(sys.stdout)))
        sys.exit(serve_until_end(options, environ, view_for(sys.stdout)))
    except (PropertiesError, CannotServe, ModelNotAvailable, NoMpiRun, CannotListen, BadVariable) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--markdown", is_flag=True, help="Print the reference page, as in docs/options.md.")
def options(markdown: bool) -> None:
    """Print all keys of serving.properties."""
    if markdown:
        click.echo(reference.markdown(), nl=False)
        return
    for row in reference.rows():
        facts = f"{row.accepted}; default {row.default}; engine {row.engine}; {row.status}"
        click.secho(row.name, bold=True)
        for text in (facts, row.help):
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    "))


@main.command()
@click.argument("model", required=False)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare a copy in the cache with its source, and fetch damaged files again.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="Remove copies of earlier versions and unfinished fetches, of MODEL or of all models.",
)
def prepare(model: str | None, verify: bool, prune: bool) -> None:
    """Fetch or convert a model ahead of serving.

    Prints its folder as the last line. MODEL is a local folder, s3://bucket/prefix, or the id of a hub
    model or of the bundled model.
    """
    if model is None and (verify or not prune):
        raise click.UsageError("Missing argument 'MODEL'.")
    source = None if model is None else ModelSource(model_id=model, model_dir=str(Path.cwd()))
    view = view_for(sys.stderr)
    try:
        folder = source and (model_files.verify if verify else model_files.obtain)(source, view)
        if prune:
            model_files.prune(view, source)
    except ModelNotAvailable as error:
        raise click.ClickException(str(error)) from error
    else:
        if folder:
            click.echo(str(folder))


prepare.epilog = f"The bundled model is {BUNDLED_MODEL}."

if __name__ == "__main__":
    main()
