"""The cosine and sine tables of rotary embedding, for all positions, made once."""

from __future__ import annotations

import math

import torch

from engines.models.config import ModelConfig, RopeScaling


class RotaryTable:
    """cos and sign-folded sin by position; see `lmi_kernels.rotary_`."""

    def __init__(self, config: ModelConfig, num_positions: int, device: torch.device) -> None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        inverse_frequencies = 1.0 / (config.rope_theta**exponents)
        if config.rope_scaling is not None:
            inverse_frequencies = _scale(inverse_frequencies, config.rope_scaling)
        angles = torch.outer(torch.arange(num_positions).float(), inverse_frequencies)
        sin = angles.sin()
        self._cos = torch.cat((angles.cos(), angles.cos()), dim=-1)[:, None].to(device)
        self._signed_sin = torch.cat((-sin, sin), dim=-1)[:, None].to(device)

    def lookup(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [num_rows], int64 -> cos and signed sin, each [num_rows, 1, head_dim], fp32."""
        return self._cos[positions], self._signed_sin[positions]


def _scale(inverse_frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Stretch frequencies: all of them, or (Llama 3.1) the slow ones, with a ramp between."""
    if scaling.kind == "linear":
        return inverse_frequencies / scaling.factor
    low = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high = scaling.original_max_position_embeddings / scaling.high_freq_factor
    wavelengths = 2 * math.pi / inverse_frequencies
    ramp = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    ramped = (1 - ramp) * inverse_frequencies / scaling.factor + ramp * inverse_frequencies
    slow = torch.where(wavelengths > low, inverse_frequencies / scaling.factor, inverse_frequencies)
    return torch.where((wavelengths <= low) & (wavelengths >= high), ramped, slow)
