"""`lmi options`: list all configuration keys."""

from __future__ import annotations

import textwrap

import click

from lmi_server.properties import reference
from lmi_server.properties.options import OPTIONS

_WIDTH = 100


@click.command()
@click.option("--markdown", is_flag=True, help="Print the reference page, as in docs/options.md.")
def options(markdown: bool) -> None:
    """Print all keys of serving.properties."""
    if markdown:
        click.echo(reference.markdown(), nl=False)
        return
    for option in OPTIONS:
        default = reference.shown_default(option)
        facts = f"{option.type.accepted}; default {default}; engine {option.engine}; {option.status}"
        click.secho(option.name, bold=True)
        for text in (facts, option.help):
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    "))
