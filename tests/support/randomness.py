"""Seeds of random tests: fixed in quick runs (`make test`), new with LMI_TEST_EXAMPLES=full (`make verify`)."""

from __future__ import annotations

import os
import secrets
import zlib
from collections import Counter

FULL = os.environ.get("LMI_TEST_EXAMPLES") == "full"


_calls: Counter[str] = Counter()


def random_seed() -> int:
    """Return LMI_TEST_SEED if set. Otherwise quick runs return fixed seeds for each test, full runs new seeds."""
    if seed := os.environ.get("LMI_TEST_SEED"):
        return int(seed)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if FULL or not test:
        return secrets.randbits(31)
    _calls[test] += 1
    return zlib.crc32(f"{test} {_calls[test]}".encode()) >> 1
