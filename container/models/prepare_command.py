"""`lmi prepare`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.bundled import BUNDLED_MODEL
from container.progress import view_for
from lmi_server.config import ModelSource


@click.command(epilog=f"The bundled model is {BUNDLED_MODEL}.")
@click.argument("model", required=False)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare a copy in the cache with its source, and fetch damaged files again.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="Remove old versions and unfinished downloads of MODEL, or of all models.",
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
