"""Select the cases that `make test` runs among many similar ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def representatives(cases: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """Return all cases for `pytest.mark.parametrize`. Cases that are not in `chosen` are marked `long`."""
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=() if case in chosen else pytest.mark.long))
    return found
