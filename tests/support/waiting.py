"""Wait for another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 200.0, pause: float = 0.01) -> None:
    """Return once `condition` holds. Fail the test if it does not hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it took longer than {seconds:.0f} s"
        time.sleep(pause)
