"""A request of the running batch, as the dispatcher knows it."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core import Request, RequestOutput


@dataclass(slots=True)
class Running:
    """What has come for it so far. Changed by the dispatcher's loop only."""

    request: Request
    num_tokens: int = 0
    first_token_time: float | None = None

    def take(self, output: RequestOutput, now: float) -> None:
        self.num_tokens += len(output.token_ids)
        if self.first_token_time is None and output.token_ids:
            self.first_token_time = now
