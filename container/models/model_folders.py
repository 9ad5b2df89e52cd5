"""A folder of model folders: several models, each named after its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lmi_server.config import holds_model
from lmi_server.properties.environment import named_folder

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILES = ("serving.properties", "model.py")
"""Files that make a folder a model's without the model itself."""
_NAMING = ("HF_MODEL_ID", "OPTION_MODEL_ID")
"""Environment variables that name a single model."""


def model_folders(path: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the folder of each model by name if `path` contains only model folders; else an empty dict."""
    if not path.is_dir() or _is_model(path) or any(environ.get(name) for name in _NAMING):
        return {}
    named = named_folder(environ)
    if named is not None and named.resolve() != path.resolve():
        return {}
    entries = [
        entry for entry in sorted(path.iterdir()) if entry.name[0] != "." and entry.name != "lost+found"
    ]
    if not all(MODEL_NAME.fullmatch(entry.name) and _is_model(entry) for entry in entries):
        return {}
    return {entry.name: entry.resolve() for entry in entries}


def _is_model(folder: Path) -> bool:
    return holds_model(folder) or any((folder / name).is_file() for name in _FILES)
