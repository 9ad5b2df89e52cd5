"""Output of the measuring commands: tables on the terminal and in Markdown, JSON and CSV files."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from container.measure.stoppable import uninterrupted

_WIDTH = 140
"""Characters per line if the output is not a terminal."""

json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Write all results to this file as JSON; - is stdout.",
)
csv_option = click.option(
    "--csv",
    "csv_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a line for each request to this file.",
)


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header, and rows with as many cells as the header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_left: int = 1
    """Number of leading columns that are left-aligned; the others are right-aligned."""

    def markdown(self) -> str:
        """Return the table in Markdown, without the title."""
        ruler = ("---" if place < self.num_left else "---:" for place in range(len(self.header)))
        lines = [self.header, ruler, *self.rows]
        return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)

    def print_to(self, console: Console) -> None:
        table = RichTable()
        for place, name in enumerate(self.header):
            table.add_column(
                Text(name), justify="left" if place < self.num_left else "right", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(Text, row))  # not markup: names and errors may contain brackets
        # A title is not wrapped, however narrow the terminal is: it may contain a path to copy.
        console.print(Text(self.title, style="bold"), soft_wrap=True)
        console.print(table)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def publish(
    tables: Iterable[Table],
    lines: Iterable[str | Text],
    values: Any,
    json_path: Path | None,
    *writers: Callable[[], str | None],
) -> None:
    """Write the files of a finished measurement, then print its results.

    The files come first, because stdout may be gone: `less` was quit, or the terminal was closed. A file that cannot be
    written does not prevent the others, nor does a stop signal. If the JSON goes to stdout, all else goes to stderr.

    values: the JSON. writers: each writes another file, and may return a line to print.

    Raises:
        click.ClickException: files cannot be written. The message has all errors.
        OSError: stdout or stderr is gone. `lmi` exits with code 1.
    """
    to_stdout = str(json_path) == "-"
    if json_path is not None and not to_stdout:
        writers = (functools.partial(_write_json, values, json_path), *writers)
    written, errors = list[str | None](), list[str]()
    with uninterrupted():
        for write in writers:
            try:
                written.append(write())
            except click.ClickException as error:
                errors.append(error.message)
    try:
        if to_stdout:
            click.echo(_json_text(values))
        show(tables, lines, sys.stderr if to_stdout else None)
        for line in filter(None, written):
            click.echo(line, err=True)
    finally:
        if errors:
            raise click.ClickException("\n".join(errors))


def show(tables: Iterable[Table], lines: Iterable[str | Text], file: TextIO | None = None) -> None:
    """Print tables, then lines, to `file` or else stdout."""
    console = Console(file=file)
    if not console.is_terminal:
        console.width = _WIDTH
    for table in tables:
        table.print_to(console)
    for line in lines:
        # Lines are not wrapped, because users copy paths from them.
        console.print(line if isinstance(line, Text) else Text(line), soft_wrap=True)


def bullets(sentences: Iterable[object]) -> Iterator[str]:
    """Yield the lines of a list."""
    return (f"- {sentence}" for sentence in sentences)


def require_writable(*paths: Path | None) -> None:
    """Check before a long measurement that its files or folders can be written. Raises click.UsageError."""
    for path in paths:
        if path is None or str(path) == "-":
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise click.UsageError(f"{path}: there is no folder {folder}")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise click.UsageError(f"{path}: cannot be written")


@contextlib.contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Raise click.ClickException if the file of an option cannot be written."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{option}: cannot write {path}: {error.strerror}") from error


def _json_text(values: Any) -> str:
    return json.dumps(plain_json(values), indent=1)


def _write_json(values: Any, json_path: Path) -> None:
    """Raises click.ClickException if the file cannot be written."""
    with writing("--json", json_path):
        json_path.write_text(_json_text(values) + "\n", encoding="utf-8")


def write_csv(header: Sequence[str], rows: Iterable[Sequence[Any]], csv_path: Path | None) -> None:
    """Write a table as CSV if the user asked for it. NaN becomes an empty cell.

    Raises click.ClickException if the file cannot be written.
    """
    if csv_path is None:
        return
    with writing("--csv", csv_path), csv_path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([plain_json(cell) for cell in row] for row in rows)


def plain_json(value: Any) -> Any:
    """Convert to plain JSON values: dataclasses become objects, paths become text, NaN and infinity become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_json(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
