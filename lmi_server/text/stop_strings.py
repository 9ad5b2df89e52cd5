"""Find stop strings in streamed text. The text is cut before, or optionally after, the first match.

The first match is the one that ends first. If several end together, the longest wins. The result therefore does not
depend on how the text was split into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string in the text of one completion."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`stops`: non-empty strings. `include`: whether to keep the stop string at the end of the text."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text; None before a match."""

    def push(self, piece: str, may_end: bool = True) -> str:
        """Add the next piece. Return the text that can be shown; a possible start of a stop string is held back.

        `may_end`: whether a stop string may end in this piece. If not, one that does is part of the text.
        """
        if self.matched is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop, max(0, len(self._held) + 1 - len(stop)))) >= 0
        ]
        if found and may_end:
            end, start, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else start]
        shown = len(text) - self._num_partial_match_chars(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Return the held-back text at the end of the output."""
        held, self._held = self._held, ""
        return held

    def _num_partial_match_chars(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
