"""Index of the tensors in a model's GGUF files: their places, shapes and formats.

`container/models/gguf_describe.py` writes the index once, next to config.json. Every rank reads it. Plain Python.

The index names files anywhere on this machine, so one that comes with a model must never be used: it is not downloaded
(`container/models/files/choice.py`), and a local folder with one is refused (`container/models/files/folder.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "gguf.json"
"""File name of the index in a model's folder."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    kind: int
    """A value of `gguf.GGMLQuantizationType`."""
    shape: tuple[int, ...]
    offset: int
    """Offset of the first byte in the file."""
    file: str
    """File name, a key of `GgufIndex.sizes`."""


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """Index of a model in one or several GGUF files."""

    folder: str
    """Absolute path of the folder with the files."""
    sizes: Mapping[str, int]
    """Size of each file in bytes, by file name."""
    architecture: str
    """Value of `general.architecture`. The gguf package has a table of tensor names for each architecture."""
    num_layers: int
    dtype: str
    """Dtype (torch's name) of matrices after reading: their own, or float32 if they are quantized."""
    interleaved_heads: Mapping[str, int]
    """Number of heads of each projection with interleaved rotary pairs, by names like `attn_q`."""
    norm_offset: float
    """Number that the file adds to the weights of norms. Reading subtracts it."""
    tensors: Mapping[str, GgufTensor]

    def save(self, folder: Path) -> None:
        (folder / NAME).write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @property
    def names_gguf_files_only(self) -> bool:
        names = {*self.sizes, *(tensor.file for tensor in self.tensors.values())}
        return names == self.sizes.keys() and all(
            name.endswith(".gguf") and "/" not in name for name in names
        )

    @property
    def problem(self) -> str:
        """Difference between the files and this index, in one sentence. Empty if there is none."""
        for name, described in self.sizes.items():
            file = Path(self.folder, name)
            try:
                size = file.stat().st_size
            except OSError as error:
                return f"{file} cannot be read: {error.strerror or error}"
            if size != described:
                return f"{file} has {size} bytes, but had {described}; restart the server"
        return ""


def read_index(folder: Path) -> GgufIndex | None:
    """Return the index in a model's folder, or None if the weights are not in GGUF files.

    A file of this name that this program did not write is ignored.
    """
    try:
        data = json.loads((folder / NAME).read_text(encoding="utf-8"))
        tensors = {
            name: GgufTensor(**tensor | {"shape": tuple(tensor["shape"])})
            for name, tensor in data.pop("tensors").items()
        }
        index = GgufIndex(**data, tensors=tensors)
        return index if index.names_gguf_files_only else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
