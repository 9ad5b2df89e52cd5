"""Tables of cosines and sines for rotary embedding, computed once for all positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from engines.layers.dynamic_rope import dynamic_theta
from engines.layers.long_rope import long_rope_frequencies
from engines.layers.yarn import yarn_frequencies
from engines.models.config import DynamicRope, LongRope, RopeScaling, Rotary, Yarn

RotaryTables = Mapping[Rotary, torch.Tensor]
"""Table of each kind of rotary embedding, [num_positions, dim], fp32: cosines of dim / 2 angles, then sines."""


def rotary_tables(rotaries: Iterable[Rotary], num_positions: int, device: torch.device) -> RotaryTables:
    """Make the tables. num_positions: length of the longest sequence. Some kinds of scaling depend on it."""
    return {rotary: _table(rotary, num_positions).to(device) for rotary in rotaries}


def cosines_and_sines(
    table: torch.Tensor, positions: torch.Tensor, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up positions in a table. positions: [num_rows], int64.

    Returns: cosines and signed sines as `lmi_kernels.rotary_` takes them, each [num_rows, 1, dim], fp32.
    """
    cos, sin = table[positions].chunk(2, dim=-1)
    dim = -1 if interleaved else -2
    pairs = torch.stack((cos, cos), dim), torch.stack((-sin, sin), dim)
    return pairs[0].flatten(1)[:, None], pairs[1].flatten(1)[:, None]


def _table(rotary: Rotary, num_positions: int) -> torch.Tensor:
    dim, theta, scaling = rotary.dim, rotary.theta, rotary.scaling
    match scaling:
        case Yarn():
            frequencies = yarn_frequencies(dim, theta, scaling)
        case LongRope():
            frequencies = long_rope_frequencies(dim, theta, scaling, num_positions)
        case DynamicRope():
            frequencies = _frequencies(dim, dynamic_theta(dim, theta, scaling, num_positions))
        case RopeScaling():
            frequencies = _scale(_frequencies(dim, theta), scaling)
        case None:
            frequencies = _frequencies(dim, theta)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table * scaling.attention_factor if isinstance(scaling, Yarn | LongRope) else table


def _frequencies(dim: int, theta: float) -> torch.Tensor:
    """Return unscaled frequencies, [dim / 2], fp32."""
    return 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)


def _scale(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Scale all frequencies (linear), or only the low ones with a ramp in between (Llama 3.1)."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    low = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high = scaling.original_max_position_embeddings / scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    ramp = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    ramped = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
    slow = torch.where(wavelengths > low, frequencies / scaling.factor, frequencies)
    return torch.where((wavelengths <= low) & (wavelengths >= high), ramped, slow)
