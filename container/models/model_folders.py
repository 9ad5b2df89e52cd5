"""A folder of model folders: several models, each named after its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILES = ("serving.properties", "config.json", "model.py")
"""Files of which a model's folder has at least one, unless it has a GGUF file."""
_NAMING = ("HF_MODEL_ID", "OPTION_MODEL_ID")
"""Environment variables that name a single model."""


def model_folders(path: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the folder of each model by name if `path` contains only model folders; else an empty dict."""
    if not path.is_dir() or _is_model(path) or any(environ.get(name) for name in _NAMING):
        return {}
    entries = [
        entry for entry in sorted(path.iterdir()) if entry.name[0] != "." and entry.name != "lost+found"
    ]
    if not all(MODEL_NAME.fullmatch(entry.name) and _is_model(entry) for entry in entries):
        return {}
    return {entry.name: entry.resolve() for entry in entries}


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES) or any(folder.glob("*.gguf"))
