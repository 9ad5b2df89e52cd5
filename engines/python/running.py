"""Requests that may run more than once, and deliver each token once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.core import Request
from engines.errors import DeadlineExceeded, RequestFailed


def batch_timed_out(limit: float, num_tokens: int) -> DeadlineExceeded:
    """Make the error of a request that had `num_tokens` tokens when its batch had run for `limit` seconds."""
    return DeadlineExceeded(
        f"the batch took longer than {limit:g} s (option.predict_timeout); {num_tokens} tokens were generated"
    )


class Delivered:
    """The tokens that a request has delivered. A later run from its prompt must repeat them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._num_repeated = 0

    def restart(self) -> None:
        """Prepare for another run."""
        self._num_repeated = 0

    def take(self, tokens: Sequence[int]) -> bool:
        """Take a run's next tokens. Returns whether they are new.

        Raises:
            RequestFailed: an earlier run delivered others at this place.
        """
        place, self._num_repeated = self._num_repeated, self._num_repeated + len(tokens)
        if place == len(self.tokens):
            self.tokens += tokens
            return True
        if self.tokens[place : self._num_repeated] != list(tokens):
            raise RequestFailed("this request had to run again, and its answer could not be repeated")
        return not tokens


@dataclass(slots=True)
class Running:
    """A request of the running batch, as the dispatcher sees it."""

    request: Request
    deaths: int = 0
    """Number of times that the generating process ended while it ran this request."""
    first_token_time: float | None = None
    delivered: Delivered = field(default_factory=Delivered)

    @property
    def num_tokens(self) -> int:
        return len(self.delivered.tokens)
