"""Random numbers in tests: always the same few, or with LMI_TEST_EXAMPLES=full many new ones.

`make test` takes the few, `make verify` the many.
"""

from __future__ import annotations

import os
import secrets
import zlib

FULL = os.environ.get("LMI_TEST_EXAMPLES") == "full"


def random_seed() -> int:
    """Return LMI_TEST_SEED, else in a quick run the same number for the same test, else a new one."""
    if given := os.environ.get("LMI_TEST_SEED"):
        return int(given)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return secrets.randbits(31) if FULL or not test else zlib.crc32(test.encode()) >> 1
