"""Where the tensors of a model in GGUF files are, and in what form: written once beside a config.json, read by every
rank.

Plain Python. `container/models/gguf_describe.py` writes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "gguf.json"
"""Of the index in a model's folder."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    kind: int
    """A value of `gguf.GGMLQuantizationType`."""
    shape: tuple[int, ...]
    offset: int
    """Of the first byte in the file."""
    file: str
    """A name in `GgufIndex.sizes`."""


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """One GGUF file, or several with parts of a model."""

    folder: str
    """Absolute path of the files."""
    sizes: Mapping[str, int]
    """Bytes of each file by its name."""
    architecture: str
    """Value of `general.architecture`, by which the package gguf knows its names of tensors."""
    num_layers: int
    dtype: str
    """In which matrices are read, in torch's words: their own, or float32 where they are quantised."""
    interleaved_heads: Mapping[str, int]
    """Number of heads of projections whose rotary pairs lie side by side, by names like `attn_q`."""
    norm_offset: float
    """Added to the weights of norms in the file."""
    tensors: Mapping[str, GgufTensor]

    def save(self, folder: Path) -> None:
        (folder / NAME).write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @property
    def problem(self) -> str:
        """Why the files are not those that were described, in one sentence; empty if they are."""
        for name, described in self.sizes.items():
            file = Path(self.folder, name)
            try:
                size = file.stat().st_size
            except OSError as error:
                return f"{file} cannot be read: {error.strerror or error}"
            if size != described:
                return f"{file} has {size} bytes, it had {described}; start again"
        return ""


def read_index(folder: Path) -> GgufIndex | None:
    """Return the index in a model's folder; None: its weights are not in a GGUF file."""
    if not (folder / NAME).is_file():
        return None
    data = json.loads((folder / NAME).read_text(encoding="utf-8"))
    tensors = {
        name: GgufTensor(**tensor | {"shape": tuple(tensor["shape"])})
        for name, tensor in data.pop("tensors").items()
    }
    return GgufIndex(**data, tensors=tensors)
