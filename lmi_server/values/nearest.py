"""Search for the known name that is nearest to a mistyped name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

_MAX_CHARS = 64
"""Number of characters of a name that are compared. Every known name is shorter."""
_CUTOFF = 0.65
_NUM_MATCHES = 3
_PREFIX_CUTOFF = 0.7
_PREFIXED = re.compile(r"([^\W_]+)[\W_](.+)")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to `name`, or an empty string if none is near.

    Case, prefix and separators count less than letters, because they are often mistyped. Near names that begin with
    `name` come first, because the last word may be missing.
    """
    name = name[:_MAX_CHARS]
    candidates: dict[str, list[str]] = {}
    for one in sorted(known):
        candidates.setdefault(_letters(one), []).append(one)
    letters = _letters(name)
    found = get_close_matches(letters, candidates, n=_NUM_MATCHES, cutoff=_CUTOFF)
    if not found:
        return ""
    best = next((match for match in found if match.startswith(letters)), found[0])
    return max(candidates[best], key=lambda one: SequenceMatcher(None, name, one).ratio())


def is_typo(name: str, known: str) -> bool:
    """Return whether at most two letters of `name` are wrong, missing or in excess; see `nearest` for what counts."""
    return _within_edits(_letters(name[:_MAX_CHARS]), _letters(known), 2)


def _within_edits(one: str, other: str, edits: int) -> bool:
    while one and one[:1] == other[:1]:
        one, other = one[1:], other[1:]
    if not one or not other or not edits:
        return len(one) + len(other) <= edits
    pairs = ((one[1:], other), (one, other[1:]), (one[1:], other[1:]))
    return any(_within_edits(*pair, edits - 1) for pair in pairs)


def _letters(name: str) -> str:
    """Return the part of a name to compare: lower case, without separators and without a prefix similar to `option`."""
    name = name.lower()
    parts = _PREFIXED.fullmatch(name)
    if parts and SequenceMatcher(None, parts[1], "option").ratio() > _PREFIX_CUTOFF:
        name = parts[2]
    return name.replace("-", "").replace("_", "")
