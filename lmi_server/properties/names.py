"""Which known key a mistyped one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lmi_server.properties.environment import variables_of


def nearest_name(name: str, known: Iterable[str], variable: str = "") -> str:
    """The known key nearest to `name`, or empty when none is near.

    The prefix and the case of a key are easily got wrong, so they count less than its letters. For a name out
    of the environment, `variable` is that name, and the answer is a variable too where the key has one.
    """
    candidates: dict[str, list[str]] = {}
    for key in known:
        candidates.setdefault(_bare(key), []).append(key)
    found = difflib.get_close_matches(_bare(name), candidates, n=1, cutoff=0.65)
    if not found:
        return ""
    key = max(candidates[found[0]], key=lambda other: difflib.SequenceMatcher(None, name, other).ratio())
    variables = variables_of(key) if variable else ()
    return variables[0] if variables else key


def _bare(key: str) -> str:
    return key.lower().removeprefix("option.").removeprefix("options.").replace("-", "").replace("_", "")
