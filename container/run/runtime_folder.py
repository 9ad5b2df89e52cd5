"""The folder of one run: sockets, status board and configurations. It is removed at the end of the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from container.models.publish import lock_if_free

_PREFIX = "lmi-"
_LOCK = "lock"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (a private folder is made in it)
_YOUNG_SECONDS = 60.0
_LONGEST_BASE = 72
"""Maximum bytes of the base folder's path: the address of a socket in a subfolder of a run's folder must stay below
108 bytes."""


def _base() -> Path:
    """Return /dev/shm if it is writable, because the status board is written every step, too often for a disk."""
    if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        return _SHARED_MEMORY
    temporary = Path(tempfile.gettempdir())
    return temporary if len(os.fsencode(temporary)) <= _LONGEST_BASE else Path("/tmp")  # noqa: S108


def remove_leftovers(base: Path | None = None) -> None:
    """Remove the folders that killed runs of this user left behind."""
    for folder in (base or _base()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            # The owner of a new folder may not have locked it yet.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_SECONDS:
                continue
            if (folder / _LOCK).is_file():
                with lock_if_free(folder / _LOCK) as acquired:
                    if acquired:
                        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def runtime_folder(base: Path | None = None) -> Iterator[Path]:
    """Create a folder with mode 0700 and a short name. It is locked until the end of the run, then removed."""
    base = base or _base()
    remove_leftovers(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    with lock_if_free(folder / _LOCK):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
