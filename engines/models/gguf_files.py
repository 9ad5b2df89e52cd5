"""Read and dequantize parts of tensors in GGUF files, by the names of a Hugging Face checkpoint.

Quantized blocks run along rows. Rows are therefore read independently, and columns are cut from whole rows. GGUF stores
all experts of a layer in one tensor, one after the other. A matrix may have a factor
(`blk.0.attn_q.scale` for `blk.0.attn_q.weight`), as in files in NVFP4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, MODEL_ARCH_NAMES, GGMLQuantizationType, get_tensor_name_map
from gguf.quants import dequantize

from engines.models.byte_ranges import FolderRanges
from engines.models.gguf_index import GgufIndex, GgufTensor
from engines.models.tensor_files import BadCheckpoint, TensorFiles
from engines.partition import Shard

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NORM = "_norm.weight"
_ROUTER = "ffn_gate_inp"
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_MAIN = re.compile(r"(blk\.\d+\.(?!attn_rot_embd)|output|token_embd).*\.(weight|bias)")
"""Names of the tensors of a language model. Other parts of a file may read images."""


class GgufFiles(TensorFiles):
    """The tensors of a model in GGUF files."""

    def __init__(self, index: GgufIndex) -> None:
        """
        Raises:
            BadCheckpoint: the files differ from those in the index.
        """
        if index.problem:
            raise BadCheckpoint(index.problem)
        self._index = index
        self.ranges = FolderRanges(Path(index.folder))
        architecture = next(each for each, name in MODEL_ARCH_NAMES.items() if name == index.architecture)
        self._names = get_tensor_name_map(architecture, index.num_layers)

    def __contains__(self, name: str) -> bool:
        return self._own_name(name) in self._index.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> torch.dtype:
        if len(self.shape(name)) < 2 or _ROUTER in self._own_name(name):
            return torch.float32
        return _DTYPES[self._index.dtype]

    def require_used(self, names: Set[str]) -> None:
        used = {self._own_name(name) for name in names}
        unused = [name for name in self._index.tensors if _MAIN.fullmatch(name) and name not in used]
        if unused:
            raise BadCheckpoint(
                f"{self._files} has tensors that are not supported (got {', '.join(unused[:3])}); use the model in"
                " another format"
            )

    def read_rows(self, name: str, start: int, stop: int, out: torch.Tensor) -> int:
        values, num_bytes = self._rows(name, start, stop)
        out.copy_(torch.from_numpy(values).view(out.shape))
        return num_bytes

    def read_columns(self, name: str, rows: Shard, columns: Shard, out: torch.Tensor) -> int:
        values, num_bytes = self._rows(name, rows.start, rows.stop)
        out.copy_(torch.from_numpy(values[:, columns.start : columns.stop]))
        return num_bytes

    def _rows(self, name: str, start: int, stop: int) -> tuple[npt.NDArray[np.float32], int]:
        """Return rows [start, stop) in fp32, and the number of bytes read."""
        tensor, own, offset = self._tensor(name), self._own_name(name), self._index.norm_offset
        factor = self._index.tensors.get(own.removesuffix("weight") + "scale")
        num_heads = self._index.interleaved_heads.get(own.split(".")[-2])
        if num_heads is not None:
            places = _interleaved(start, stop, tensor.shape[0] // num_heads)
            first = int(places.min())
            values, num_bytes = self._read(tensor, first, int(places.max()) + 1)
            values = values[places - first]
        else:
            values, num_bytes = self._read(tensor, start, stop)
        if offset and own.endswith(_NORM):
            values = values - offset
        if factor is not None:
            expert = _expert(name) or 0
            values = values * self._read(factor, expert, expert + 1)[0]
        return values, num_bytes

    def _read(self, tensor: GgufTensor, start: int, stop: int) -> tuple[npt.NDArray[np.float32], int]:
        kind = GGMLQuantizationType(tensor.kind)
        row_bytes = _num_bytes(kind, tensor.shape[1:])
        data = np.empty((stop - start, row_bytes), np.uint8)
        try:
            self.ranges.read(tensor.file, tensor.offset + start * row_bytes, data.reshape(-1).data)
        except EOFError as error:
            raise BadCheckpoint(str(error)) from None
        return np.asarray(dequantize(data, kind), np.float32), data.nbytes

    def _tensor(self, name: str) -> GgufTensor:
        tensor, expert = self._index.tensors.get(self._own_name(name)), _expert(name)
        if tensor is None or (expert or 0) >= tensor.shape[0]:
            raise BadCheckpoint(f"{self._files} has no tensor {name!r}")
        if expert is None:
            return tensor
        shape = tensor.shape[1:]
        return replace(tensor, shape=shape, offset=tensor.offset + expert * _num_bytes(tensor.kind, shape))

    @property
    def _files(self) -> str:
        return f"{self._index.folder}: {' and '.join(self._index.sizes)}"

    def _own_name(self, name: str) -> str:
        """Return the GGUF name of a checkpoint tensor. All experts share one name. Empty if GGUF has no such tensor."""
        return self._names.get_name(_EXPERT.sub(".experts.", name), (".weight", ".bias")) or ""


def _expert(name: str) -> int | None:
    """Return the number of the expert that a checkpoint tensor belongs to. None if it belongs to none."""
    found = _EXPERT.search(name)
    return None if found is None else int(found[1])


def _num_bytes(kind: int, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of a tensor that consists of whole blocks."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    size: int = math.prod(shape) // block * block_bytes
    return size


def _interleaved(start: int, stop: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Return the file's row numbers for the rows [start, stop) of a query or key projection.

    RoPE pairs feature 2i with 2i + 1 in the file, and feature i with i + head_dim / 2 in this engine.
    """
    head, feature = np.divmod(np.arange(start, stop), head_dim)
    half, pair = np.divmod(feature, head_dim // 2)
    places: npt.NDArray[np.int64] = head * head_dim + 2 * pair + half
    return places
