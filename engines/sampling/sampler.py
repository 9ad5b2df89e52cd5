"""Choose the next token of each row, vectorised over the batch, each by its own parameters and random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engines.core import SampledToken, SamplingParams, TokenLogprobs
from engines.sampling.bad_words import bad_words
from engines.sampling.batch import SamplingBatch, SamplingRow
from engines.sampling.draw import choose, find_edges
from engines.sampling.frequency_penalty import frequency_penalty
from engines.sampling.logit_bias import logit_bias
from engines.sampling.min_new_tokens import min_new_tokens
from engines.sampling.plan import SamplingPlan
from engines.sampling.presence_penalty import presence_penalty
from engines.sampling.repetition_penalty import repetition_penalty
from engines.sampling.report import report
from engines.sampling.state import SequenceState
from engines.sampling.typical_p import typical_p
from lmi_kernels import likeliest

LogitsStep = Callable[[torch.Tensor, SamplingBatch], None]

STEPS: tuple[LogitsStep, ...] = (
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    logit_bias,
    bad_words,
    min_new_tokens,
)
"""In the order of transformers' `generate`, which has no presence and frequency penalty, and adds biases first of all.

Repetition comes first because it multiplies: it goes by the sign of the logit, which means something in the model's own
only, and a bias or another penalty is then worth what the client wrote. Those only add, so among themselves their order
does not matter. What rules tokens out comes after what changes them. Greedy rows and beams end here; rows that are
drawn go on with what looks at the distribution: temperature, top_k, top_p, min_p (`draw.py`), and `typical_p`.
"""


class Sampler:
    """Holds, for sequences that ask for it, what their penalties depend on."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._states: dict[str, SequenceState] = {}
        self._plan = SamplingPlan([], vocab_size, device)

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """Choose a token for each row; a row with beams gets the likeliest, and what can go on from it in `top`.

        logits: [num_rows, vocab_size], any float dtype, row i for `rows[i]`, not changed. -inf rules a token out.
        """
        params = [row.params for row in rows]
        # Of the same requests, which are found equal without a look at what they ask.
        if params != self._plan.params:
            self._plan = SamplingPlan(params, self._vocab_size, self._device)
        plan = self._plan
        changed = logits
        beams: dict[int, TokenLogprobs] = {}
        if plan.changed:
            changed, beams = self._change(logits, rows, plan)
        edges = find_edges(changed, plan)
        if plan.typical:
            edges.rule_out(changed, plan.typical)
            typical_p(changed, SamplingBatch(rows, [], plan.drawn))
        chosen, finite = choose(changed, rows, plan, edges)
        if plan.restricted:
            finite[plan.restricted] &= logits[plan.restricted].amax(dim=-1).isfinite()
        if not plan.reported:
            return [
                SampledToken(token, None, ok, beams.get(i, ()))
                for i, (token, ok) in enumerate(zip(chosen.tolist(), finite.tolist(), strict=True))
            ]
        logprobs, tops = report(logits, chosen, rows)
        return [
            SampledToken(token, logprobs.get(i), ok, beams.get(i) or tops.get(i, ()))
            for i, (token, ok) in enumerate(zip(chosen.tolist(), finite.tolist(), strict=True))
        ]

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended. Idempotent."""
        self._states.pop(sequence_id, None)

    def _change(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], plan: SamplingPlan
    ) -> tuple[torch.Tensor, dict[int, TokenLogprobs]]:
        """Logits after all steps, [num_rows, vocab_size], fp32; and the continuations of rows with beams."""
        changed = logits.to(torch.float32, copy=True)
        if plan.with_beams:
            # What beams add up are log-probabilities, so these are what steps change.
            changed[plan.with_beams] = changed[plan.with_beams].log_softmax(dim=-1)
        batch = SamplingBatch(rows, [self._state_of(row) for row in rows], plan.drawn)
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
        # A beam's tokens change as hypotheses are replaced: what was kept of it would be another's.
        state = self._states.get(row.id) if row.params.num_beams == 1 else None
        if state is None:
            state = SequenceState(row.params, row.num_prompt_tokens, self._vocab_size)
            if row.params.num_beams == 1:
                self._states[row.id] = state
        state.follow(row.token_ids)
        return state


def _num_continuations(params: SamplingParams) -> int:
    """So many that with all others `num_beams` of them go on, whichever of them are stop tokens."""
    return params.num_beams + max(params.num_beams, len(params.stop_token_ids))
