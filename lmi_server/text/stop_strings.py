"""Stop strings in streamed text: the text is cut before, or on request after, the first complete one.

The first is the one that ends first; of several that end together, the longest. So the result does not depend on how
the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches the text of one answer. Mutable."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`stops`: none is empty. `include`: the text ends with the stop string, which is shown."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, piece: str) -> str:
        """Take the next piece and return the text that can be shown: it cannot be the start of a stop string."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else start]
        shown = len(text) - self._num_undecided(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Return the text held back, when the text has ended."""
        held, self._held = self._held, ""
        return held

    def _num_undecided(self, text: str) -> int:
        """Return the length of the longest end of `text` that a stop string starts with."""
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
