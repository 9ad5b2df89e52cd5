"""How a model's layers attend: one description for each layer, from which every backend computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides all of them by `factor`; `llama3` only the slow ones (Llama 3.1 model card, section rope).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): features that turn slowly are stretched by `factor`."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    """Cosines and sines are multiplied by it."""
    beta_fast: float = 32.0
    """Features that turn more often than this in the trained context keep their frequency."""
    beta_slow: float = 1.0
    """Those that turn less often are stretched; between the two, partly."""
    truncate: bool = True
    """Round the bounds of what is stretched partly to whole features."""


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753), as in Phi-3: each pair of features has its own factor."""

    short_factors: tuple[float, ...]
    """[dim / 2]: divisors of the frequencies where no sequence is longer than the trained context."""
    long_factors: tuple[float, ...]
    """[dim / 2]: divisors where one may be longer."""
    original_max_position_embeddings: int
    attention_factor: float
    """Cosines and sines are multiplied by it."""


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """Dynamic NTK scaling: theta grows with the longest sequence, beyond the trained context."""

    factor: float
    max_position_embeddings: int
    """Length of the trained context."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of queries and keys: feature i turns with feature
    i + dim / 2.
    """

    dim: int
    """Features of each head that are turned, from the first one on; the others pass unchanged."""
    theta: float = 10000.0
    scaling: RopeScaling | Yarn | LongRope | DynamicRope | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends. Scores are `scale * q @ k`, then capped, then biased by ALiBi."""

    scale: float
    rotary: Rotary | None
    query_key_norms: bool = False
    """RMSNorm of every query head and every key head, before they are turned (Qwen3)."""
    window: int | None = None
    """Number of latest tokens that a query sees, its own included; None: all."""
    softcap: float | None = None
    """Replace scores by cap * tanh(score / cap) (Gemma 2, arXiv:2408.00118)."""
    alibi_slopes: tuple[float, ...] | None = None
    """ALiBi, one slope for each query head: slope * (key position - query position) is added (arXiv:2108.12409)."""
    sinks: bool = False
    """Each query head has a learned score that takes part in the softmax and has no value."""
