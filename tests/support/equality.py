"""Compare the output of the server with that of transformers, token by token."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.client import Ending, Outcome
from tests.support.oracle import Answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of one response with the oracle's answer."""

    num_equal: int
    """Number of leading tokens that are equal."""
    num_expected: int
    difference: str
    """The first difference; empty if tokens, finish reason and text are equal."""


def compare(expected: Answer, got: Outcome) -> Comparison:
    """Compare strictly: tokens and their order, finish reason and text must be equal.

    The server's tokens may include the EOS token that ended the response or not; the finish reason reports it.
    """
    count = len(expected.token_ids)
    ids = tuple(got.token_ids)
    num_equal = 0
    while num_equal < min(count, len(ids)) and ids[num_equal] == expected.token_ids[num_equal]:
        num_equal += 1
    finish = "eos_token" if expected.ended else "length"
    if got.ending is not Ending.COMPLETE:
        difference = f"no complete answer: {got.describe()}"
    elif num_equal < count:
        difference = (
            f"token {num_equal} is {ids[num_equal : num_equal + 1]}, expected {expected.token_ids[num_equal]}"
        )
    elif len(ids) > count + int(expected.ended):
        difference = f"{len(ids)} tokens, expected {count}"
    elif got.finish_reason != finish:
        difference = f"finish_reason is {got.finish_reason!r}, expected {finish!r}"
    elif got.text != expected.output:
        difference = f"text is {got.text!r}, expected {expected.output!r}"
    else:
        difference = ""
    return Comparison(num_equal, count, difference)
