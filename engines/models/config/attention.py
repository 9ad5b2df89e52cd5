"""Description of each layer's attention, for all backends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies for sequences beyond the trained context.

    `linear` divides all frequencies by `factor`; `llama3` only the low ones (Llama 3.1 model card, section rope).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN scaling (Peng et al. 2023, arXiv:2309.00071): low rotary frequencies are divided by `factor`."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    """Factor for cosines and sines."""
    beta_fast: float = 32.0
    """Features with more rotations than this in the trained context keep their frequency."""
    beta_slow: float = 1.0
    """Features with fewer rotations than this are fully scaled. Between the two bounds the scaling is interpolated."""
    truncate: bool = True
    """Whether to round the bounds of the interpolated range to whole features."""


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE scaling (Ding et al. 2024, arXiv:2402.13753), as in Phi-3: each pair of features has its own factor."""

    short_factors: tuple[float, ...]
    """[dim / 2]: divisors of the frequencies if no sequence can be longer than the trained context."""
    long_factors: tuple[float, ...]
    """[dim / 2]: divisors of the frequencies if sequences can be longer."""
    original_max_position_embeddings: int
    attention_factor: float
    """Factor for cosines and sines."""


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """Dynamic NTK scaling: beyond the trained context, theta grows with the longest sequence."""

    factor: float
    max_position_embeddings: int
    """Length of the trained context."""


Scaling = RopeScaling | Yarn | LongRope | DynamicRope | None
"""Scaling of rotary embeddings; None: they are not scaled."""


def longest_sequence(context: int, scalings: Iterable[Scaling]) -> int:
    """Return the length up to which all of these scalings extend a model's context, at least `context`.

    As in vLLM, `max_position_embeddings`, which is `context`, already includes the scaling of llama3 and longrope.
    """
    return max(context, min((_extended(context, scaling) for scaling in scalings), default=context))


def default_sequence(context: int, scalings: Iterable[Scaling]) -> int:
    """Return `longest_sequence` without dynamic scaling, which changes the results of shorter sequences too."""
    return longest_sequence(context, (None if isinstance(each, DynamicRope) else each for each in scalings))


def _extended(context: int, scaling: Scaling) -> int:
    match scaling:
        case Yarn():
            return int(scaling.original_max_position_embeddings * scaling.factor)
        case DynamicRope() | RopeScaling(kind="linear"):
            return int(context * scaling.factor)
        case _:
            return context


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of queries and keys. Features i and i + dim / 2 are
    rotated as a pair.
    """

    dim: int
    """Number of rotated features, the first ones of each head. The others stay unchanged."""
    theta: float = 10000.0
    scaling: Scaling = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention of one layer. Scores are `scale * q @ k`; then the soft cap and the ALiBi bias apply."""

    scale: float
    rotary: Rotary | None
    query_key_norms: bool = False
    """RMSNorm of every query head and every key head, before the rotation (Qwen3)."""
    window: int | None = None
    """Sliding window: the number of latest tokens that a query sees, including its own; None: all tokens."""
    softcap: float | None = None
    """Soft cap: scores become cap * tanh(score / cap) (Gemma 2, arXiv:2408.00118)."""
    alibi_slopes: tuple[float, ...] | None = None
    """ALiBi slope of each query head: slope * (key position - query position) is added to scores (arXiv:2108.12409)."""
    sinks: bool = False
    """Attention sinks: each query head has a learned score that takes part in the softmax but has no value."""
