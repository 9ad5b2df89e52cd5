"""Tables of cosines and sines for rotary embedding, computed once for all positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

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
            frequencies = _yarn_frequencies(dim, theta, scaling)
        case LongRope():
            frequencies = _long_rope_frequencies(dim, theta, scaling, num_positions)
        case DynamicRope():
            frequencies = _frequencies(dim, _dynamic_theta(dim, theta, scaling, num_positions))
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


def _yarn_frequencies(dim: int, theta: float, yarn: Yarn) -> torch.Tensor:
    """Return the frequencies of dim / 2 pairs of features, fp32. Low frequencies are divided by the factor.

    YaRN: Peng et al. 2023, arXiv:2309.00071.
    """
    powers = theta ** (torch.arange(0, dim, 2).float() / dim)
    low, high = _pair(dim, theta, yarn.beta_fast, yarn), _pair(dim, theta, yarn.beta_slow, yarn)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slow = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    kept = 1 - slow
    return 1.0 / (yarn.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _pair(dim: int, theta: float, turns: float, yarn: Yarn) -> float:
    """Return the index of the pair that makes `turns` rotations in the trained context. It may be fractional."""
    trained = yarn.original_max_position_embeddings
    return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _long_rope_frequencies(dim: int, theta: float, scaling: LongRope, num_positions: int) -> torch.Tensor:
    """Return the frequencies of dim / 2 pairs of features, fp32 (LongRoPE: Ding et al. 2024, arXiv:2402.13753).

    num_positions: length of the longest sequence. It selects the short or the long factors for all sequences, because
        keys in the cache cannot change their frequencies when a sequence grows.
    """
    long = num_positions > scaling.original_max_position_embeddings
    factors = torch.tensor(scaling.long_factors if long else scaling.short_factors)
    return 1.0 / (factors * theta ** (torch.arange(0, dim, 2).float() / dim))


def _dynamic_theta(dim: int, theta: float, scaling: DynamicRope, num_positions: int) -> float:
    """Return theta for sequences of up to `num_positions` tokens (dynamic NTK scaling).

    All sequences have the same theta here. transformers uses the current length of each sequence, and does not rotate
    earlier keys again.
    """
    trained, factor = scaling.max_position_embeddings, scaling.factor
    longest = max(num_positions, trained)
    return float(theta * (factor * longest / trained - (factor - 1)) ** (dim / (dim - 2)))
