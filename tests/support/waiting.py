"""Wait for something that another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 200.0, pause: float = 0.01) -> None:
    """Return once `condition` holds. The test fails when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it took longer than {seconds:.0f} s"
        time.sleep(pause)
