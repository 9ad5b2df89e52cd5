"""The rows of one batch, and who is told of what comes out of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.core import RequestOutput
from engines.python.rows import Row


class Listener(Protocol):
    """Who wants to know what comes out."""

    def step(self, outputs: list[RequestOutput]) -> Collection[str]:
        """What one step gave, perhaps nothing. Returns the ids of requests of which no more is wanted."""


@dataclass(slots=True)
class Waste:
    """What was computed for nobody. Changed by `Steps` and `Generation` while a batch runs."""

    prompt_padding: int = 0
    """Tokens by which prompts were padded."""
    ended_row_tokens: int = 0
    """Tokens computed for rows that had ended, because others had not."""


class Batch:
    """The rows of one batch, whichever call they are in, and who is told of them."""

    def __init__(self, rows: Sequence[Row], listener: Listener) -> None:
        self.rows = rows
        self.waste = Waste()
        self._by_id = {row.id: row for row in rows}
        self._listener = listener

    def tell(self, outputs: list[RequestOutput]) -> None:
        for request_id in self._listener.step(outputs):
            if request_id in self._by_id:
                self._by_id[request_id].ended = True
