"""Comparing what the server generated with what transformers did, token by token."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.client import Ending, Outcome
from tests.support.oracle import Answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's tokens against the oracle's."""

    num_equal: int
    """Leading tokens that are equal."""
    num_expected: int
    difference: str
    """Empty when tokens, end and text are all equal, else what is not."""


def compare(expected: Answer, got: Outcome) -> Comparison:
    """Strict: the same tokens in the same order, ended by the same cause, and the same text.

    The EOS token that ends an answer may or may not be in the server's list; the finish reason tells of it.
    """
    count = len(expected.token_ids)
    ids = tuple(got.token_ids)
    equal = 0
    while equal < min(count, len(ids)) and ids[equal] == expected.token_ids[equal]:
        equal += 1
    finish = "eos_token" if expected.ended else "length"
    if got.ending is not Ending.COMPLETE:
        difference = f"no complete answer: {got.describe()}"
    elif equal < count:
        difference = f"token {equal} is {ids[equal : equal + 1]}, expected {expected.token_ids[equal]}"
    elif len(ids) > count + int(expected.ended):
        difference = f"{len(ids)} tokens, expected {count}"
    elif got.finish_reason != finish:
        difference = f"finish_reason is {got.finish_reason!r}, expected {finish!r}"
    elif got.text != expected.output:
        difference = f"text is {got.text!r}, expected {expected.output!r}"
    else:
        difference = ""
    return Comparison(equal, count, difference)
