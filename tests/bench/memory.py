"""Memory of a whole process tree, shared pages counted once (PSS)."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from container.run.processes import process_tree

_EVERY_SECONDS = 0.25


def tree_pss(root: int, proc: Path = Path("/proc")) -> int:
    """Bytes. A process that ends meanwhile counts nothing."""
    total = 0
    for pid in process_tree(root):
        with contextlib.suppress(OSError):
            text = (proc / str(pid) / "smaps_rollup").read_text()
            if match := re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE):
                total += int(match[1]) * 1024
    return total


class PeakPss:
    """The largest of several looks.

    A look walks the page tables of all processes, which takes milliseconds: none is made while a run is timed. The
    runs before which a `with` block watches must be as large as the timed ones.
    """

    def __init__(self, measure: Callable[[], int]) -> None:
        self.bytes = 0
        self._measure = measure
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        self.bytes = max(self.bytes, self._measure())

    def __enter__(self) -> Self:
        """Look four times a second from now on."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="pss", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self.look()

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            self.look()
