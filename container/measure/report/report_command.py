"""The `lmi report` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from container.measure.report.page import write_html
from container.measure.report.results import BadResults, read_results
from container.measure.report.svg import NoPlots, require_matplotlib


def _check_name(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix != ".html":
        raise click.BadParameter(f"not an HTML file (got {path}); allowed: a name ending in .html")
    if path is not None:
        require_matplotlib()  # fail now, not after a long measurement
    return path


report_option = click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_check_name,
    help="Write an HTML page with plots to this file.",
)
"""Option for commands that write a report in addition to other output."""


@click.command("report")
@click.argument(
    "results", metavar="RESULTS.json", type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_check_name,
    help="Write the HTML page to this file. Default: RESULTS.html.",
)
def report(results: Path, output: Path | None) -> None:
    """Write a page with plots from the results of `lmi compare`, `lmi bench` or `lmi simulate`, written with --json.

    The page is one file that loads nothing else.
    """
    try:
        document = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{results}: not a JSON file: {error}") from error
    path = output or results.with_suffix(".html")
    try:
        write_report(document, path)
    except BadResults as error:
        raise click.ClickException(f"{results}: {error}") from error
    click.echo(f"report: {path}", err=True)


def write_report(document: Any, path: Path | None) -> None:
    """Write the page for a command's JSON if the user asked for it. Raises click.ClickException, BadResults."""
    if path is None:
        return
    try:
        write_html(read_results(document), path)
    except (NoPlots, OSError) as error:
        raise click.ClickException(f"{path}: cannot write the report: {error}") from error
