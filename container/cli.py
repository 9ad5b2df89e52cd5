"""The `lmi` command."""

from __future__ import annotations

import os
from typing import Any

import click

from engines.registry import Registry
from lmi_server.values.nearest import nearest

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


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = _COMMANDS.get(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := nearest(args[0], _COMMANDS):
                raise click.UsageError(f"{error.message} Did you mean '{near}'?", ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PermissionError as error:
            if error.filename is None:
                raise
            raise click.ClickException(
                f"{error.filename}: {error.strerror} to user {os.geteuid()}; check the owner and mode of the file and"
                " its folders"
            ) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lmi-server", message="LMI Server %(version)s")
def main() -> None:
    """LMI Server: serve and benchmark language models configured by a serving.properties file."""
