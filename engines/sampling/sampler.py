"""Choose the next token of each row, vectorised over the batch, each by its own parameters and random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engines.core import SampledToken, SamplingParams, TokenLogprobs
from engines.sampling.bad_words import bad_words
from engines.sampling.batch import SamplingBatch, SamplingRow
from engines.sampling.draw import choose, find_edges
from engines.sampling.frequency_penalty import frequency_penalty
from engines.sampling.likeliest import likeliest
from engines.sampling.logit_bias import logit_bias
from engines.sampling.min_new_tokens import min_new_tokens
from engines.sampling.presence_penalty import presence_penalty
from engines.sampling.repetition_penalty import repetition_penalty
from engines.sampling.report import report
from engines.sampling.state import SequenceState
from engines.sampling.typical_p import typical_p

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

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """Choose a token for each row; a row with beams gets the likeliest, and what can go on from it in `top`.

        logits: [num_rows, vocab_size], any float dtype, row i for `rows[i]`, not changed. -inf rules a token out.
        """
        changed = [i for i, row in enumerate(rows) if _changes_logits(row.params)]
        if not changed:
            chosen, best = _greedy(logits)
            # NaN counts as larger than every number, so the largest shows whatever is wrong.
            finite = best.isfinite()
            beams: dict[int, TokenLogprobs] = {}
        else:
            finite = logits.amax(dim=-1).isfinite()
            chosen, beams = self._choose(logits, rows, changed, finite)
        tokens = chosen.tolist()
        logprobs, tops = report(logits, chosen, rows)
        return [
            SampledToken(token, logprobs.get(i), ok, beams.get(i) or tops.get(i, ()))
            for i, (token, ok) in enumerate(zip(tokens, finite.tolist(), strict=True))
        ]

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended. Idempotent."""
        self._states.pop(sequence_id, None)

    def _choose(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], changed: Sequence[int], finite: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, TokenLogprobs]]:
        """Token ids of all rows, [num_rows], and the continuations of those with beams.

        `finite` is taken back for rows of which no token is left.
        """
        if len(changed) == len(rows):
            own = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            own_chosen, own_finite, beams = self._choose_changed(own, rows)
            finite &= own_finite
            return own_chosen, beams
        index = torch.tensor(changed, device=logits.device)
        own_chosen, own_finite, beams = self._choose_changed(
            logits[index].float(), [rows[i] for i in changed]
        )
        chosen, _ = _greedy(logits)
        chosen[index] = own_chosen
        finite[index] &= own_finite
        return chosen, {changed[i]: top for i, top in beams.items()}

    def _choose_changed(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[torch.Tensor, torch.Tensor, dict[int, TokenLogprobs]]:
        """As `_choose`, for rows that all ask for some step; also whether there was a token. `logits` is changed."""
        with_beams = [i for i, row in enumerate(rows) if row.params.num_beams > 1]
        if with_beams:
            # What beams add up are log-probabilities, so these are what steps change.
            index = torch.tensor(with_beams, device=logits.device)
            logits[index] = logits[index].log_softmax(dim=-1)
        drawn = [i for i, row in enumerate(rows) if row.drawn]
        batch = SamplingBatch(rows, [self._state_of(row) for row in rows], drawn)
        for step in STEPS:
            step(logits, batch)
        beams: dict[int, TokenLogprobs] = {}
        if with_beams:
            found = likeliest(logits[index], [_num_continuations(rows[i].params) for i in with_beams])
            beams = dict(zip(with_beams, found, strict=True))
        edges = find_edges(logits, batch)
        if any(rows[i].params.typical_p < 1.0 for i in drawn):
            edges.rule_out(logits)
            typical_p(logits, batch)
        return *choose(logits, batch, edges), beams

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


def _changes_logits(params: SamplingParams) -> bool:
    """Whether a row's token is anything but the one with its largest logit."""
    return (
        params.temperature != 0.0
        or params.num_beams > 1
        or SequenceState.is_needed(params)
        or bool(params.bad_words)
        or params.min_new_tokens > 0
    )


def _num_continuations(params: SamplingParams) -> int:
    """So many that with all others `num_beams` of them go on, whichever of them are stop tokens."""
    return params.num_beams + max(params.num_beams, len(params.stop_token_ids))


def _greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of the largest logits, of equal ones the lowest, and these logits: [num_rows] each."""
    chosen = logits.argmax(dim=-1)
    return chosen, logits.gather(1, chosen[:, None])[:, 0]
