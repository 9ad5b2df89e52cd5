"""Requests that may run more than once but deliver each token only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.core import Request
from engines.errors import DeadlineExceeded, RequestFailed, tokens_generated


def batch_timed_out(limit: float, num_tokens: int) -> DeadlineExceeded:
    """Return the error of a request with `num_tokens` tokens whose batch took longer than `limit` seconds."""
    return DeadlineExceeded(
        f"the batch took longer than {limit:g} s (option.predict_timeout); {tokens_generated(num_tokens)}"
    )


class Delivered:
    """The tokens that a request has delivered. Another run of the request continues or reproduces them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._num_repeated = 0

    def restart(self, num_repeated: int = 0) -> None:
        """Prepare for another run of the request, which starts after the first `num_repeated` tokens."""
        self._num_repeated = num_repeated

    def record(self, tokens: Sequence[int]) -> bool:
        """Record a run's next tokens. Return whether they are new.

        Raises:
            RequestFailed: an earlier run delivered different tokens at these positions.
        """
        place, self._num_repeated = self._num_repeated, self._num_repeated + len(tokens)
        if place == len(self.tokens):
            self.tokens += tokens
            return True
        if self.tokens[place : self._num_repeated] != list(tokens):
            raise RequestFailed(
                "the request was retried after its batch failed, and the retry generated different tokens than already"
                " sent; send it again"
            )
        return not tokens


@dataclass(slots=True)
class RunningRequest:
    """The dispatcher's record of a request in the running batch."""

    request: Request
    first_token_time: float | None = None
    delivered: Delivered = field(default_factory=Delivered)

    @property
    def num_tokens(self) -> int:
        return len(self.delivered.tokens)
