"""`lmi prepare`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from container.models import files as model_files
from container.models.files.bundled import BUNDLED_MODEL
from container.progress import view_for
from container.run import launch
from lmi_server.config import ModelSource
from lmi_server.properties import environment, loader


@click.command(epilog=f"The bundled model is {BUNDLED_MODEL}.")
@click.argument("model", required=False)
@click.option(
    "--revision", help="Branch, tag or commit of a Hub model. Default: that of the file or the environment."
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare a copy in the cache with its source, and fetch damaged files again.",
)
@click.option(
    "--prune", is_flag=True, help="Remove old versions and unfinished downloads of MODEL, or of all models."
)
def prepare(model: str | None, revision: str | None, verify: bool, prune: bool) -> None:
    """Fetch or convert a model ahead of serving.

    Prints its folder as the last line. MODEL is a serving.properties or a folder that contains one, a local model,
    s3://bucket/prefix, or the id of a Hub model or of the bundled model.
    """
    if model is None and (verify or revision or not prune):
        raise click.UsageError("Missing argument 'MODEL'.")
    view = view_for(sys.stderr)
    source = None if model is None else _source(model, revision)
    folder = source and (model_files.verify if verify else model_files.obtain)(source, view)
    if prune:
        model_files.prune(view, source)
    if folder:
        click.echo(str(folder))


def _source(model: str, revision: str | None) -> ModelSource:
    """Return the source of MODEL, with the revision that `lmi serve` uses by default.

    Raises: PropertiesError; UsageError: there is a revision, but the model has none.
    """
    environ, path = launch.environment(), Path(model)
    if path.suffix == ".properties" or (path / loader.FILE_NAME).is_file():
        source = loader.load(path, environ).config.source
    else:
        revisions = map(environ.get, environment.variables_of("option.revision"))
        source = ModelSource(model, str(Path.cwd()), next(filter(None, revisions), None))
    if revision is None:
        return source
    source = replace(source, revision=revision)
    if model_files.refusal(source) is None and not model_files.hub_id(source):
        place = source.model_id or source.local_path
        raise click.UsageError(
            f"--revision: only models of the Hub have revisions (got {place}); leave it out"
        )
    return source
