"""Number of weights in a model's matrix products, read from the headers of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Matrices:
    """Number of weights in the matrices of a dense model."""

    layer_weights: int
    head_weights: int
    """Weights of the vocabulary head, which is computed for sampled rows only."""

    @property
    def weights(self) -> int:
        return self.layer_weights + self.head_weights


def read_matrices(folder: Path) -> Matrices | None:
    """Return None for unknown tensor names and for models with experts, where a token uses few of the weights."""
    shapes: dict[str, Sequence[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "np") as tensors:
            shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    return count(shapes)


def count(shapes: Mapping[str, Sequence[int]]) -> Matrices | None:
    if _EMBEDDING not in shapes or any(".experts." in name for name in shapes):
        return None
    rows, width = shapes.get(_HEAD, shapes[_EMBEDDING])
    layers = sum(
        shape[0] * shape[1]
        for name, shape in shapes.items()
        if len(shape) == 2 and name not in (_EMBEDDING, _HEAD)
    )
    return Matrices(layers, rows * width)
