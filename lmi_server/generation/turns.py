"""Do long work for one request in parts, so that other requests do not wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import gevent

_ITEMS_PER_TURN = 128
"""Items between two switches. This many prompt tokens with 20 top tokens each take a few milliseconds."""

Item = TypeVar("Item")


def in_turns(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, and let other greenlets run after every `_ITEMS_PER_TURN` items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS_PER_TURN == 0:
            gevent.sleep(0)
