"""How the commands here show their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_WIDTH = 130

json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write JSON there; - is stdout.",
)


def show(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    json_path: Path | None,
) -> None:
    """A table with its title above and notes below; on stderr when JSON goes to stdout."""
    console = Console(file=sys.stderr if str(json_path) == "-" else sys.stdout)
    if not console.is_terminal:
        console.width = _WIDTH
    table = Table(Column(columns[0], no_wrap=True), *(Column(name, justify="right") for name in columns[1:]))
    for row in rows:
        table.add_row(*row)
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)
    for note in notes:
        console.print(Text(note))


def write_json(values: Any, json_path: Path | None) -> None:
    """Raises click.ClickException: the file cannot be written."""
    if json_path is None:
        return
    text = json.dumps(values, indent=2)
    if str(json_path) == "-":
        click.echo(text)
        return
    try:
        json_path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--json: cannot write {json_path}: {error.strerror}") from error
