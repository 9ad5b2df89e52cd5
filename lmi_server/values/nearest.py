"""The one search for the known name that a mistyped one is nearest to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

_MAX_CHARS = 64
"""Of a name that is compared; every known name is shorter."""
_CUTOFF = 0.65
_PREFIX_CUTOFF = 0.7
_PREFIXED = re.compile(r"([^\W_]+)[\W_](.+)")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to `name`, or an empty string when none is near.

    Case, prefix and separators are easily mistaken, so they count less than letters.
    """
    name = name[:_MAX_CHARS]
    candidates: dict[str, list[str]] = {}
    for one in sorted(known):
        candidates.setdefault(_letters(one), []).append(one)
    found = get_close_matches(_letters(name), candidates, n=1, cutoff=_CUTOFF)
    if not found:
        return ""
    return max(candidates[found[0]], key=lambda one: SequenceMatcher(None, name, one).ratio())


def _letters(name: str) -> str:
    """What of a name is compared: small letters, without a first word like `option`, however that is mistyped."""
    name = name.lower()
    parts = _PREFIXED.fullmatch(name)
    if parts and SequenceMatcher(None, parts[1], "option").ratio() > _PREFIX_CUTOFF:
        name = parts[2]
    return name.replace("-", "").replace("_", "")
