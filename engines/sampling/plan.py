"""What the requests of a batch ask for, looked up once and kept while the same requests run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engines.core import SamplingParams
from engines.sampling.state import SequenceState


class SamplingPlan:
    """Which rows need what, ascending, and columns of numbers for kernels, one a row."""

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> None:
        self.params = params
        rows = range(len(params))
        drawn = {i for i in rows if params[i].temperature != 0.0 and params[i].num_beams == 1}
        self.drawn = sorted(drawn)
        """Their tokens are drawn, not the likeliest."""
        self.typical = [i for i in self.drawn if params[i].typical_p < 1.0]
        self.with_beams = [i for i in rows if params[i].num_beams > 1]
        self.restricted = [i for i in rows if params[i].bad_words or params[i].min_new_tokens > 0]
        """Tokens may be ruled out, one that is not finite among them."""
        own = {i for i in rows if SequenceState.is_needed(params[i])}
        self.changed = sorted(own.union(self.typical, self.with_beams, self.restricted))
        """Logits are changed before the choice."""
        self.reported = [i for i in rows if params[i].logprobs or params[i].top_logprobs > 0]
        """Log-probabilities are reported."""

        def column(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(numbers, dtype=dtype, device=device)

        heat = [params[i].temperature if i in drawn else 0.0 for i in rows]
        self.temperature = column(heat, torch.float32)
        """0 in rows that are not drawn."""
        self.top_k = column([min(each.top_k, vocab_size) for each in params], torch.int64)
        self.top_p = column([each.top_p for each in params], torch.float64)
        self.min_p = column([each.min_p for each in params], torch.float64)
        self.truncates = any(
            params[i].top_k > 0 or params[i].top_p < 1.0 or params[i].min_p > 0.0 for i in drawn
        )
        self.seeds = column([seed_bits(each) for each in params], torch.int64)
        nothing = torch.full((len(params),), -math.inf, device=device)
        self.no_edges = nothing, torch.zeros_like(nothing, dtype=torch.int32)
        """Thresholds and last ids where every token may be drawn."""


def seed_bits(params: SamplingParams) -> int:
    """A seed's 64 bits, as a number with a sign."""
    return params.seed - ((params.seed >> 63) << 64)
