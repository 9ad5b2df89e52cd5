"""Number of examples in property tests: a few fixed ones, or all with LMI_TEST_EXAMPLES=full."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

from tests.support.randomness import FULL

_QUICK_DIVISOR = 4
"""Quick runs take the number of examples of a full run, divided by this."""


def examples(count: int, **options: Any) -> settings:
    """Return settings for a property test that takes `count` examples in a full run."""
    few = max(2, count // _QUICK_DIVISOR)
    return settings(max_examples=count if FULL else few, derandomize=not FULL, deadline=None, **options)
