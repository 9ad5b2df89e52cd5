"""A request of the running batch, as the dispatcher knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import Request, RequestOutput
from engines.errors import RequestFailed


@dataclass(slots=True)
class Running:
    """What has come for it so far. Changed by the dispatcher's loop only."""

    request: Request
    deaths: int = 0
    """How often the generating process has ended while it ran this request."""
    first_token_time: float | None = None
    _delivered: list[int] = field(default_factory=list)
    _num_repeated: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self._delivered)

    def begin_again(self) -> None:
        """It is generated anew from its prompt: what was delivered is not delivered twice."""
        self._num_repeated = 0

    def is_repeated(self, output: RequestOutput) -> bool:
        """Whether the client has these tokens already.

        Raises:
            RequestFailed: at this place it has others.
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
