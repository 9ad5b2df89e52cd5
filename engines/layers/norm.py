"""RMSNorm and LayerNorm, optionally fused with the residual addition."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lmi_kernels


@dataclass(frozen=True, slots=True)
class Norm:
    """One norm, or two LayerNorms of the same rows that share the normalization."""

    affines: tuple[tuple[torch.Tensor, torch.Tensor | None], ...]
    """Weight and bias of each norm, [hidden]."""
    eps: float
    is_layer_norm: bool
    """True for LayerNorm, False for RMSNorm."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the first norm. x: [num_rows, hidden] -> [num_rows, hidden]."""
        return self._all(x)[0]

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Add x, [num_rows, hidden], to the residual stream and normalize the sum.

        residual: the stream, which may be overwritten; None: the stream begins with x.

        Returns: the normalized stream of each norm, and the stream.
        """
        if residual is None:
            return self._all(x), x
        if self.is_layer_norm:
            return lmi_kernels.add_layer_norms(x, residual, self.affines, self.eps)
        normalized, residual = lmi_kernels.add_rms_norm(x, residual, self.affines[0][0], self.eps)
        return (normalized,), residual

    def _all(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.is_layer_norm:
            return lmi_kernels.layer_norms(x, self.affines, self.eps)
        return (lmi_kernels.rms_norm(x, self.affines[0][0], self.eps),)
