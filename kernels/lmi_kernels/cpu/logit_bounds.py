"""Bounds of all logits of a head, computed from an int8 copy. See `GreedyHead` in `native/operations.h`."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight

_PANEL = 32
"""`kPanel` of `native.h`."""
_SEARCH_FLOATS = _PANEL + 6
"""`kSearchFloats` of `operations.h`."""
_MAX_NORM = 1e15
_MAX_COLUMNS = 1 << 24
"""Column numbers are returned as fp32, which is exact up to here."""


class LogitBounds:
    """Bounds of all logits of a head: an int8 copy of its weight, and the norms that bound the errors of the copy."""

    max_exact_share = 0.5
    """Maximum cost of the logits that are computed exactly, as a share of the cost of all. Above it, the bounds cost
    more than they save."""

    def __init__(self, team: Team, weight: torch.Tensor) -> None:
        """weight: [out_features, in_features]; bf16, fp16 or fp32."""
        norms = torch.empty(2, len(weight))
        self.weight = NativeWeight(team, weight, storage=Storage.INT8, norms=norms)
        self._num_panels = -(-len(weight) // _PANEL)
        self.column_norms = torch.zeros(2, self._num_panels * _PANEL)
        """Norm of each column and of its quantization error."""
        self.column_norms[:, : len(weight)] = norms

    @property
    def is_usable(self) -> bool:
        """False if weights are not finite or so large that bounds may overflow."""
        return bool((self.column_norms < _MAX_NORM).all()) and self.weight.out_features < _MAX_COLUMNS

    def scratch_sizes(self, max_rows: int, num_threads: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return size and dtype of the scratch buffers of a `GreedyHead`, by field. max_rows: a multiple of 16."""
        return self.weight.scratch_sizes(max_rows) | {
            "row_norms": (2 * max_rows, torch.float32),
            "bounds": (max(4 * self._num_panels, _PANEL) * max_rows, torch.float32),
            "products": (num_threads * max_rows * _SEARCH_FLOATS, torch.float32),
        }
