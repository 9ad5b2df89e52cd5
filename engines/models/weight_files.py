"""The safetensors files of a model folder, and their headers. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    dtype: str
    """Dtype as the header names it, such as `BF16`."""
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> Iterator[StoredTensor]:
    """Read the headers of the model's files, up to the first damaged file."""
    for path in weight_files(folder):
        try:
            with safe_open(path, "np") as file:
                for name in file.keys():  # noqa: SIM118  not a mapping
                    tensor = file.get_slice(name)
                    yield StoredTensor(name, tensor.get_dtype(), tuple(tensor.get_shape()))
        except (SafetensorError, OSError):
            return


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
