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
    file: Path
    offset: int
    """Offset of its first byte in the file."""


def stored_tensors(folder: Path) -> Iterator[StoredTensor]:
    """Read the headers of the model's files, up to the first damaged file."""
    for path in weight_files(folder):
        try:
            yield from read_header(path)
        except (SafetensorError, OSError):
            return


def read_header(path: Path) -> list[StoredTensor]:
    """Return the tensors of a file, by name. Raises SafetensorError, OSError."""
    with safe_open(path, "np"):
        pass  # The header is complete, and its tensors cover the rest of the file.
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(length))
    header.pop("__metadata__", None)
    try:
        return [
            StoredTensor(
                name, info["dtype"], tuple(info["shape"]), path, 8 + length + info["data_offsets"][0]
            )
            for name, info in sorted(header.items())
        ]
    except TypeError as error:  # safetensors accepts arrays too
        raise SafetensorError("an entry of the header is not an object") from error


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
