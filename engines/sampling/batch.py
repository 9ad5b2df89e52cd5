"""The batch that sampling steps work on. Plain Python: schedulers create rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engines.core import SamplingParams

MAX_SAMPLED_ROWS = 128
"""Maximum rows that the host samples at once. Copies of more logits over a large vocabulary would take gigabytes."""


class SamplingRow(NamedTuple):
    """A sequence whose next token is to be sampled."""

    id: str
    params: SamplingParams
    token_ids: Sequence[int]
    """Prompt and output so far. For one sequence, it only grows."""
    num_prompt_tokens: int


class SequenceState:
    """Token ids of a sequence as arrays, which become tensors without a Python loop.

    Ids outside the vocabulary are ignored: they have no logit.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int, vocab_size: int) -> None:
        self.seen = array("i")
        """Tokens of prompt and output, with repetitions; only if repetition is penalized."""
        self.output_ids = array("i")
        """Distinct tokens of the output; only if presence or frequency is penalized."""
        self.output_counts = array("i")
        """Number of occurrences of each of `output_ids`."""
        biases = [(token, bias) for token, bias in params.logit_bias if 0 <= token < vocab_size]
        self.bias_ids = array("i", [token for token, _ in biases])
        self.biases = array("f", [bias for _, bias in biases])
        self._vocab_size = vocab_size
        self._num_prompt_tokens = num_prompt_tokens
        self._keeps_seen = params.repetition_penalty != 1.0
        self._keeps_counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._places: dict[int, int] = {}
        self._num_known = 0

    @staticmethod
    def is_needed(params: SamplingParams) -> bool:
        """Return whether any step needs a state for a sequence with these parameters."""
        return params.penalized or bool(params.logit_bias)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Read the new tokens. token_ids: the whole sequence so far."""
        if self._keeps_seen:
            self.seen.extend(t for t in token_ids[self._num_known :] if 0 <= t < self._vocab_size)
        if self._keeps_counts:
            for token in token_ids[max(self._num_known, self._num_prompt_tokens) :]:
                self._count(token)
        self._num_known = len(token_ids)

    def _count(self, token: int) -> None:
        place = self._places.get(token)
        if place is not None:
            self.output_counts[place] += 1
        elif 0 <= token < self._vocab_size:
            self._places[token] = len(self.output_ids)
            self.output_ids.append(token)
            self.output_counts.append(1)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Rows whose logits are changed by steps before tokens are chosen."""

    rows: Sequence[SamplingRow]
    states: Sequence[SequenceState | None]
    """The state of each row; None if no step needs one."""
