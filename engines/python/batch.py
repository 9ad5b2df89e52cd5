"""One batch: its rows, who receives their outputs, and what it computed in vain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engines.core import RequestOutput
from engines.python.rows import Row

Deliver = Callable[[list[RequestOutput]], Collection[str]]
"""Takes the outputs of one step, perhaps none; returns the ids of requests that want no more."""


@dataclass(slots=True)
class Waste:
    """Tokens computed in vain. Counted by `Steps` and `Generation` while a batch runs."""

    prompt_padding: int = 0
    """Tokens added to pad prompts to the length of the longest."""
    ended_row_tokens: int = 0
    """Tokens computed for rows that had ended while others went on."""


class Batch:
    """All rows of a batch, whichever call of `generate` they are in."""

    def __init__(self, rows: Sequence[Row], deliver: Deliver) -> None:
        self.rows = rows
        self.waste = Waste()
        self._by_id = {row.id: row for row in rows}
        self._deliver = deliver

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Pass outputs on, and end the rows that nobody wants any more."""
        for request_id in self._deliver(outputs):
            if request_id in self._by_id:
                self._by_id[request_id].ended = True
