"""A folder of model folders: several models, each under the name of its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILES = ("serving.properties", "config.json", "model.py")
"""A model's folder has one of these."""
_NAMING = ("HF_MODEL_ID", "OPTION_MODEL_ID")
"""Variables that name the only model."""


def model_folders(path: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """The folder of each model by name, if `path` holds nothing but model folders; else empty."""
    if not path.is_dir() or _is_model(path) or any(environ.get(name) for name in _NAMING):
        return {}
    entries = [
        entry for entry in sorted(path.iterdir()) if entry.name[0] != "." and entry.name != "lost+found"
    ]
    if not all(MODEL_NAME.fullmatch(entry.name) and _is_model(entry) for entry in entries):
        return {}
    return {entry.name: entry.resolve() for entry in entries}


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)
