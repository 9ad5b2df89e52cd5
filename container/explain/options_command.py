"""`lmi options`: list all configuration keys."""

from __future__ import annotations

import textwrap

import click

from lmi_server.properties import reference

_WIDTH = 100


@click.command()
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
