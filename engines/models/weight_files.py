"""The safetensors files of a model folder. Plain Python."""

from __future__ import annotations

import json
from pathlib import Path

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that are the model, without other copies of its weights and shards of older ones.

    As in transformers: model.safetensors, else the files of the index, else all. Whether files are missing or the
    index is invalid is checked by `lmi serve` (`container/models/files/folder.py`).
    """
    files = sorted(folder.glob("*.safetensors"))
    listed = _listed(folder / _INDEX)
    single = [file for file in files if file.name == _SINGLE]
    return single or [file for file in files if file.name in listed] or files


def _listed(index: Path) -> set[str]:
    """Return the names of the files in an index; none if there is no valid index."""
    try:
        return set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
