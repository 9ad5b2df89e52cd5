"""The lock for changes of the settings of all copies. Processes that change settings at the same time take turns."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.errors import Unavailable

_POLL_SECONDS = 0.01


@contextmanager
def settings_lock(file: Path, timeout: float, sleep: Callable[[float], object]) -> Iterator[None]:
    """Hold the lock, against other processes and other greenlets of this one. The kernel frees it if its holder dies.

    sleep: waits for this many seconds, and lets other greenlets run. An error that it raises ends the wait.
    Raises: Unavailable: another holder has kept the lock for `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    with file.open("ab") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Unavailable("another change of the settings is in progress; try again") from None
                sleep(_POLL_SECONDS)
        yield
