"""How many examples a property test takes: few that are always the same, or with LMI_TEST_EXAMPLES=full all."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

from tests.support.randomness import FULL

_QUICK_PART = 4
"""Of the examples of a full run, one in so many is taken."""


def examples(count: int, **options: Any) -> settings:
    """Return settings for a property test that takes `count` examples in a full run."""
    few = max(2, count // _QUICK_PART)
    return settings(max_examples=count if FULL else few, derandomize=not FULL, deadline=None, **options)
