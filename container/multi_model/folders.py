"""Which models there are: a folder of model folders, or what SageMaker's multi-model API names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from container.multi_model.errors import BadModel
from lmi_server.values.show import as_json

MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILES = ("serving.properties", "config.json", "model.py")
"""A model's folder has one of these."""
_NAMING = ("HF_MODEL_ID", "OPTION_MODEL_ID")
"""Variables that name the only model."""


def is_multi_model(environ: Mapping[str, str]) -> bool:
    """Whether the platform loads and unloads the models."""
    return environ.get(MULTI_MODEL, "").strip().lower() == "true"


def model_folders(path: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """The folder of each model by name, if `path` holds nothing but model folders; else empty."""
    if not path.is_dir() or _is_model(path) or any(environ.get(name) for name in _NAMING):
        return {}
    entries = [
        entry for entry in sorted(path.iterdir()) if entry.name[0] != "." and entry.name != "lost+found"
    ]
    if not all(_NAME.fullmatch(entry.name) and _is_model(entry) for entry in entries):
        return {}
    return {entry.name: entry.resolve() for entry in entries}


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)


def check_name(name: str) -> None:
    """Raises BadModel."""
    if not _NAME.fullmatch(name):
        raise BadModel(
            f"model_name: given {as_json(name)}; accepted: 1 to 128 letters, digits, '.', '_' and '-', "
            "the first a letter or a digit"
        )


def folder_of_url(url: str, root: Path) -> Path:
    """The folder that a path or a `file://` address names; it must be below `root`. Raises BadModel."""
    path = Path(unquote(urlsplit(url).path) if url.startswith("file:") else url)
    given = f"url: given {as_json(url)}"
    if "\0" in url or not path.is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise BadModel(f"{given}; accepted: a folder below {root}")
    if not path.is_dir():
        raise BadModel(f"{given}: there is no such folder; archives are not unpacked here")
    return path.resolve()
