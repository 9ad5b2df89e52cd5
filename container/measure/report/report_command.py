"""`lmi report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from container.measure.report.page import render_markdown, write_html
from container.measure.report.svg import NoPlots, require_matplotlib

_SUFFIXES = (".html", ".md")


def _check_name(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix not in _SUFFIXES:
        raise click.BadParameter(f"not a kind of report (got {path}); allowed: a name ending in .html or .md")
    if path is not None and path.suffix == ".html":
        try:
            require_matplotlib()  # better now than after a long measurement
        except NoPlots as error:
            raise click.ClickException(str(error)) from error
    return path


report_option = click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_check_name,
    help="Write a page with plots to this file; a name ending in .md gives Markdown.",
)
"""For commands that write a report beside other things."""


@click.command("report")
@click.argument(
    "results", metavar="RESULTS.json", type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_check_name,
    help="Write to this file, .html or .md. The default is RESULTS.html.",
)
def report(results: Path, out: Path | None) -> None:
    """Write a page with plots from the results of `lmi compare --json` or `lmi bench --json`.

    The page is one file that loads nothing else.
    """
    path = out or results.with_suffix(".html")
    write_report(_read(results), path)
    click.echo(f"report: {path}", err=True)


def write_report(document: Mapping[str, Any], path: Path) -> None:
    """Write HTML, or Markdown where the name ends in .md. Raises click.ClickException."""
    try:
        if path.suffix == ".md":
            path.write_text(render_markdown(document), encoding="utf-8")
        else:
            write_html(document, path)
    except (NoPlots, OSError) as error:
        raise click.ClickException(f"{path}: the report was not written: {error}") from error


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict) or not {"rounds", "summary", "figures", "trials"} & set(document):
        raise click.ClickException(
            f"{path}: no results of lmi compare or lmi bench; allowed: what their --json option writes"
        )
    return document
