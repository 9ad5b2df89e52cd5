"""A request of the running batch, as the dispatcher sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import Request, RequestOutput
from engines.errors import RequestFailed


@dataclass(slots=True)
class Running:
    """A request and the tokens that it has delivered so far. Only the dispatcher's loop changes it."""

    request: Request
    deaths: int = 0
    """Number of times that the generating process ended while it ran this request."""
    first_token_time: float | None = None
    _delivered: list[int] = field(default_factory=list)
    _num_repeated: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self._delivered)

    def begin_again(self) -> None:
        """Prepare for another run from the prompt: tokens that were delivered are not delivered twice."""
        self._num_repeated = 0

    def is_repeated(self, output: RequestOutput) -> bool:
        """Whether the client already has these tokens.

        Raises:
            RequestFailed: it has different tokens at this place.
        """
        place, tokens = self._num_repeated, list(output.token_ids)
        if not tokens or place == len(self._delivered):
            return False
        self._num_repeated += len(tokens)
        if self._delivered[place : self._num_repeated] != tokens:
            raise RequestFailed(
                "the generating process ended, and this request's answer could not be repeated"
            )
        return True

    def take(self, output: RequestOutput, now: float) -> None:
        self._delivered += output.token_ids
        self._num_repeated = len(self._delivered)
        if self.first_token_time is None and output.token_ids:
            self.first_token_time = now
