"""Random numbers in tests: always the same few, or with LMI_TEST_EXAMPLES=full many new ones.

`make test` takes the few, `make verify` the many.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections import Counter

FULL = os.environ.get("LMI_TEST_EXAMPLES") == "full"


_calls: Counter[str] = Counter()


def random_seed() -> int:
    """Return LMI_TEST_SEED, else in a quick run the same numbers for the same test, else a new one."""
    if given := os.environ.get("LMI_TEST_SEED"):
        return int(given)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if FULL or not test:
        return secrets.randbits(31)
    _calls[test] += 1
    return zlib.crc32(f"{test} {_calls[test]}".encode()) >> 1
