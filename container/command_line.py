"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from container.run import launch

_DEFAULT_PATH = "/opt/ml/model"
PATH_HELP = (
    "PATH is a serving.properties file, a folder that contains one, a model's folder, or a folder of several models. "
    f"The default is LMI_MODEL_DIR, else {_DEFAULT_PATH}."
)
lenient_option = click.option(
    "--lenient",
    is_flag=True,
    help="Warn about unknown keys and unused files instead of rejecting them. Same as LMI_LENIENT=true.",
)


def model_path(path: str | None) -> Path:
    """Return the PATH of a command, or the default path."""
    return Path(path or launch.environment().get("LMI_MODEL_DIR") or _DEFAULT_PATH)
