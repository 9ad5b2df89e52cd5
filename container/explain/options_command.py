"""`lmi options`: list the configuration keys."""

from __future__ import annotations

import textwrap

import click

from lmi_server.properties import reference

_WIDTH = 100


@click.command()
@click.option("--unsupported", is_flag=True, help="Print the keys of LMI that are not supported instead.")
@click.option("--markdown", is_flag=True, help="Print the reference page, as in docs/.")
def options(unsupported: bool, markdown: bool) -> None:
    """Print all supported keys of serving.properties."""
    if markdown:
        click.echo(reference.markdown(unsupported), nl=False)
        return
    for option in reference.listed(unsupported):
        default = reference.shown_default(option)
        facts = f"{option.type.accepted}; default {default}; engine {option.engine}; {option.status}"
        click.secho(option.name, bold=True)
        for text in (facts, option.help):
            click.echo(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    "))
