"""Long work for one request, done in parts so that others do not wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import gevent

_ITEMS_PER_TURN = 128
"""Prompt tokens with up to 20 of the likeliest each take a few milliseconds."""

Item = TypeVar("Item")


def in_turns(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, and let other greenlets run after every few."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS_PER_TURN == 0:
            gevent.sleep(0)
