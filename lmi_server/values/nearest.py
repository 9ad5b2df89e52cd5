"""The one search for the known name that a mistyped one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_CHARS = 64
"""Of a name that is compared; every known name is shorter."""
_CUTOFF = 0.65


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to `name`, or an empty string when none is near.

    Case, prefix and separators are easily mistaken, so they count less than letters.
    """
    name = name[:_MAX_CHARS]
    candidates: dict[str, list[str]] = {}
    for one in sorted(known):
        candidates.setdefault(_letters(one), []).append(one)
    found = difflib.get_close_matches(_letters(name), candidates, n=1, cutoff=_CUTOFF)
    if not found:
        return ""
    return max(candidates[found[0]], key=lambda one: difflib.SequenceMatcher(None, name, one).ratio())


def _letters(name: str) -> str:
    return name.lower().removeprefix("option.").removeprefix("options.").replace("-", "").replace("_", "")
