"""The sampling parameters of a batch as tensors, created once and reused while the same requests run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engines.core import SamplingParams
from engines.sampling.batch import SequenceState
from lmi_kernels import logit_thresholds


class SamplingPlan:
    """Row indices by requested feature, ascending, and parameters as columns for kernels, one entry per row."""

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> None:
        self.params = params
        rows = range(len(params))
        self.sampled = [i for i in rows if params[i].sampled]
        self.typical = [i for i in self.sampled if params[i].typical_p < 1.0]
        self.with_beams = [i for i in rows if params[i].num_beams > 1]
        self.restricted = [i for i in rows if params[i].bad_words or params[i].min_new_tokens > 0]
        """Rows with bad words or `min_new_tokens`, in which a ban could hide a non-finite logit."""
        with_state = {i for i in rows if SequenceState.is_needed(params[i])}
        self.changed = sorted(with_state.union(self.typical, self.with_beams, self.restricted))
        """Rows whose logits change before tokens are chosen."""
        self.reported = [i for i in rows if params[i].logprobs or params[i].top_logprobs > 0]
        """Rows that report log-probabilities."""

        def column(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(numbers, dtype=dtype, device=device)

        temperatures = [each.temperature if each.sampled else 0.0 for each in params]
        self.temperature = column(temperatures, torch.float32)
        """0 in rows that are not sampled."""
        self.top_k = column([min(each.top_k, vocab_size) for each in params], torch.int64)
        self.top_p = column([each.top_p for each in params], torch.float64)
        self.min_p = column([each.min_p for each in params], torch.float64)
        self._truncates = any(
            params[i].top_k > 0 or params[i].top_p < 1.0 or params[i].min_p > 0.0 for i in self.sampled
        )
        self.seeds = column([seed_bits(each) for each in params], torch.int64)
        thresholds = torch.full((len(params),), -math.inf, device=device)
        self._no_edges = thresholds, torch.zeros_like(thresholds, dtype=torch.int32)
        """Thresholds and last ids that keep every token."""

    def edges(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Truncate by top_k (Fan et al. 2018, arXiv:1805.04833), then top_p (Holtzman et al. 2020, arXiv:1904.09751),
        then min_p (Nguyen et al. 2024, arXiv:2407.01082), in the rows that ask for it.

        logits: [num_rows, vocab_size], any float dtype, rows contiguous.

        Returns: thresholds and last ids, see `lmi_kernels.logit_thresholds`.
        """
        if not self._truncates:
            return self._no_edges
        return logit_thresholds(logits, self.temperature, self.top_k, self.top_p, self.min_p)


def seed_bits(params: SamplingParams) -> int:
    """Return the seed's 64 bits as a signed number."""
    return params.seed - ((params.seed >> 63) << 64)
