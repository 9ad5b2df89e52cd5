"""A model's folder, which may be the only folder in the one that is named, as in most archives of models."""

from __future__ import annotations

from pathlib import Path

from lmi_server.config import MODEL_MOUNT, holds_model
from lmi_server.properties.option import OptionValue

_FILES = ("serving.properties", "model.py")
"""Files that make a folder a model's without the model itself."""


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder contains a model, or a file that says how to serve one."""
    return holds_model(folder) or any((folder / name).is_file() for name in _FILES)


def visible_entries(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder that are not hidden. Raises OSError."""
    return [path for path in sorted(folder.iterdir()) if path.name[0] != "." and path.name != "lost+found"]


def nested_folder(path: Path) -> Path:
    """Return the model folder in `path` if `path` contains nothing else, as in LMI; else `path`."""
    try:
        entries = visible_entries(path) if path.is_dir() else []
    except OSError:
        return path
    return entries[0] if len(entries) == 1 and is_model_folder(entries[0]) else path


def missing_mount(model: OptionValue | None, folder: Path) -> list[str]:
    """Return a note if `option.model_id` is in `MODEL_MOUNT` and this machine has no such folder; else nothing."""
    if model is None or not Path(str(model.value)).is_relative_to(MODEL_MOUNT) or MODEL_MOUNT.exists():
        return []
    return [f"{model.place}: {model}: this machine has no {MODEL_MOUNT}, so {folder} is used in its place"]
