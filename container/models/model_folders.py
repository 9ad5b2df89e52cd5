"""A folder of model folders: several models, each named after its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lmi_server.properties.environment import named_folder
from lmi_server.properties.model_folder import is_model_folder, visible_entries
from lmi_server.values.model_name import MODEL_NAME

_NAMING = ("HF_MODEL_ID", "OPTION_MODEL_ID")
"""Environment variables that name a single model."""


def model_folders(path: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the folder of each model by name if `path` contains only model folders, at least two; else an empty dict.

    A single model folder is served as one model: `lmi_server.properties.loader` reads it in place of `path`.
    """
    if not path.is_dir() or is_model_folder(path) or any(environ.get(name) for name in _NAMING):
        return {}
    named = named_folder(environ)
    if named is not None and named.resolve() != path.resolve():
        return {}
    entries = visible_entries(path)
    if len(entries) < 2:
        return {}
    if not all(MODEL_NAME.fullmatch(entry.name) and is_model_folder(entry) for entry in entries):
        return {}
    return {entry.name: entry.resolve() for entry in entries}
