"""Find a model's folder. It may be the only folder inside the given one, as in most model archives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lmi_server.config import MODEL_MOUNT, holds_model
from lmi_server.properties.option import OptionValue
from lmi_server.values.model_name import MODEL_NAME, MODEL_NAME_RULE
from lmi_server.values.show import few, one_line

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
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


def missing_path(path: Path) -> str:
    """Return the error message for a path that does not exist."""
    text = (
        "no such file or folder; pass a serving.properties, a folder that contains one, or a model's folder"
    )
    if not _HUB_ID.fullmatch(str(path)) or path.parent.exists():
        return text
    return f"{text}; for a model of the Hugging Face Hub: HF_MODEL_ID={path} lmi serve"


def no_model(folder: Path) -> str:
    """Return the error message for a folder that cannot be served: it may be a folder of several models and more."""
    try:
        entries = visible_entries(folder)
    except OSError:
        entries = []
    models = [entry.name for entry in entries if is_model_folder(entry)]
    others = [entry.name for entry in entries if entry.name not in models]
    if not models:
        return (
            "the folder holds neither a serving.properties nor a model (config.json or a GGUF file), and neither"
            " HF_MODEL_ID nor OPTION_MODEL_ID specifies one"
        )
    if len(models) == 1:
        rest = _listed(others)
        return f"has a model's folder, {models[0]}, but also {rest}; pass {models[0]} itself, or move {rest} away"
    has = f"has folders with models ({_listed(models)}), but"
    if not others:
        wrong = [name for name in models if not MODEL_NAME.fullmatch(name)]
        return f"{has} {_listed(wrong)} cannot be the name of a model; allowed: {MODEL_NAME_RULE}"
    what = "which is not a model's folder" if len(others) == 1 else "which are not models' folders"
    return (
        f"{has} also {_listed(others)}, {what}; several models are served only from a folder with nothing else in it:"
        f" move {_listed(others)} away"
    )


def _listed(names: Sequence[str]) -> str:
    return few(names, 5, one_line)


def missing_mount(model: OptionValue | None, folder: Path) -> list[str]:
    """Return a note if `option.model_id` is in `MODEL_MOUNT` and this machine has no such folder; else nothing."""
    if model is None or not Path(str(model.value)).is_relative_to(MODEL_MOUNT) or MODEL_MOUNT.exists():
        return []
    return [f"{model.place}: {model}: this machine has no {MODEL_MOUNT}, so {folder} is used in its place"]
