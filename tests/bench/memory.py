"""Memory of a whole process tree, shared pages counted once (PSS)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from container.run.processes import process_tree
from engines.host_memory import bytes_of

_INTERVAL_SECONDS = 0.25


def tree_pss(root: int) -> int:
    """Return the bytes of a process tree. A process that exits meanwhile is not counted."""
    return sum(bytes_of(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in process_tree(root))


class PeakPss:
    """The largest of several samples of PSS.

    A sample walks the page tables of all processes, which takes milliseconds. Therefore samples are only taken during
    the `with` block, whose load must be as large as the timed runs, and between timed runs.
    """

    def __init__(self, measure: Callable[[], int]) -> None:
        self.bytes = 0
        self._measure = measure
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        self.bytes = max(self.bytes, self._measure())

    def __enter__(self) -> Self:
        """Take four samples a second until the block ends."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="pss", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self.look()

    def _watch(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECONDS):
            self.look()
