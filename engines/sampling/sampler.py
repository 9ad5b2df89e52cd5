"""Sampling controlled by the host: the next token of each row, by its own parameters and random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engines.core import SampledToken, SamplingParams, TokenLogprobs
from engines.sampling.adjustments import logit_bias, penalties
from engines.sampling.bans import bans
from engines.sampling.batch import MAX_SAMPLED_ROWS, SamplingBatch, SamplingRow, SequenceState
from engines.sampling.plan import SamplingPlan
from engines.sampling.report import report
from engines.sampling.typical_p import ban_truncated, typical_p
from lmi_kernels import choose_tokens, likeliest

LogitsStep = Callable[[torch.Tensor, SamplingBatch], None]

STEPS: tuple[LogitsStep, ...] = (penalties, logit_bias, bans)
"""The steps that change logits, in the order of transformers' `generate` (which adds biases first of all).

The repetition penalty multiplies by a factor that depends on the sign of the logit, so it needs the model's own logits
and comes first. Biases and the other penalties only add, so their order does not matter. Bans come after all changes.
Sampled rows continue with temperature, top_k, top_p and min_p, and `typical_p`; greedy rows and beams do not.
"""


class Sampler:
    """Sampler for any device, which keeps the state of each sequence that penalties need."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._states: dict[str, SequenceState] = {}
        self._plans: dict[int, SamplingPlan] = {}
        """By the index of their first row."""

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """Choose a token for each row. A row with beams gets the most likely token, and its continuations in `top`.

        logits: [num_rows, vocab_size], any float dtype, row i for `rows[i]`, not changed. -inf bans a token.
        """
        tokens: list[SampledToken] = []
        for start in range(0, len(rows), MAX_SAMPLED_ROWS):
            part = rows[start : start + MAX_SAMPLED_ROWS]
            params = [row.params for row in part]
            plan = self._plans.get(start)
            # Comparing the same objects is cheap: their fields are not read.
            if plan is None or params != plan.params:
                plan = self._plans[start] = SamplingPlan(params, self._vocab_size, self._device)
            tokens += self._sample(logits[start : start + MAX_SAMPLED_ROWS], part, plan)
        return tokens

    def forget(self, sequence_id: str) -> None:
        """Drop the state of a sequence that has ended. Idempotent."""
        self._states.pop(sequence_id, None)

    def _sample(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], plan: SamplingPlan
    ) -> list[SampledToken]:
        changed = logits
        beams: dict[int, TokenLogprobs] = {}
        if plan.changed:
            changed, beams = self._apply_steps(logits, rows, plan)
        edges = plan.edges(changed)
        if plan.typical:
            ban_truncated(changed, plan.typical, *edges)
            typical_p(changed, plan)
        positions = plan.seeds  # not read if all rows are greedy
        if plan.sampled:
            positions = torch.tensor([len(row.token_ids) for row in rows], device=logits.device)
        chosen, finite = choose_tokens(changed, plan.temperature, *edges, plan.seeds, positions)
        if plan.restricted:
            finite[plan.restricted] &= logits[plan.restricted].amax(dim=-1).isfinite()
        logprobs, tops = report(logits, chosen, rows) if plan.reported else ({}, {})
        return [
            SampledToken(token, logprobs.get(i), ok, beams.get(i) or tops.get(i, ()))
            for i, (token, ok) in enumerate(zip(chosen.tolist(), finite.tolist(), strict=True))
        ]

    def _apply_steps(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], plan: SamplingPlan
    ) -> tuple[torch.Tensor, dict[int, TokenLogprobs]]:
        """Run the steps. Returns the logits, [num_rows, vocab_size], fp32, and the continuations of rows with beams."""
        changed = logits.to(torch.float32, copy=True)
        if plan.with_beams:
            # Beams add up log-probabilities, so steps change log-probabilities instead of logits.
            changed[plan.with_beams] = changed[plan.with_beams].log_softmax(dim=-1)
        batch = SamplingBatch(rows, [self._state_of(row) for row in rows])
        for step in STEPS:
            step(changed, batch)
        if not plan.with_beams:
            return changed, {}
        counts = [_num_continuations(plan.params[i]) for i in plan.with_beams]
        found = likeliest(changed[plan.with_beams], counts)
        return changed, dict(zip(plan.with_beams, found, strict=True))

    def _state_of(self, row: SamplingRow) -> SequenceState | None:
        if not SequenceState.is_needed(row.params):
            return None
        # The tokens of a beam change as hypotheses are replaced, so its state cannot be kept.
        state = self._states.get(row.id) if row.params.num_beams == 1 else None
        if state is None:
            state = SequenceState(row.params, row.num_prompt_tokens, self._vocab_size)
            if row.params.num_beams == 1:
                self._states[row.id] = state
        state.follow(row.token_ids)
        return state


def _num_continuations(params: SamplingParams) -> int:
    """Return how many continuations ensure that `num_beams` of them are not stop tokens."""
    return params.num_beams + max(params.num_beams, len(params.stop_token_ids))
