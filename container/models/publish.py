"""Create and remove folders of the cache. A folder that exists under its final name is always complete.

The files are written to a temporary folder beside it, under a lock, then flushed; then the folder is renamed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from container.models.errors import DiskFull, ModelNotAvailable
from container.progress import ProgressView


@contextmanager
def locked(path: Path, what: str, view: ProgressView) -> Iterator[None]:
    """Hold the file's lock. The kernel releases the lock when the process ends, even if it is killed."""
    with path.open("a") as file:
        if not try_lock(file):
            view.say(f"another process is {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of `locked` unless another process has it. Yields whether the lock is held."""
    with path.open("a") as file:
        yield try_lock(file)


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file. Returns False if another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise DiskFull if the disk of `folder` has less than `needed_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DiskFull(
            f"{folder} has {free >> 20} MiB free, but {what} needs {needed_bytes >> 20} MiB; "
            "set LMI_CACHE_DIR to another folder"
        )


def make_folder(
    target: Path,
    what: str,
    needed_bytes: int,
    view: ProgressView,
    make: Callable[[Path], None],
    detail: str = "",
) -> Path:
    """Return the folder `target`. If it does not exist, `make` fills a temporary folder, which is then renamed.

    target: a folder in a folder of the cache. what, detail: for messages.
    Raises: ModelNotAvailable: the cache is too full or cannot be written; whatever `make` raises, except OSError.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / f".{target.name}.lock", what, view):
            if target.is_dir():
                return target
            # This process holds the lock, so every unfinished folder was left by a killed process.
            for left_over in target.parent.glob(f".{target.name}.part-*"):
                shutil.rmtree(left_over)
            require_space(target.parent, needed_bytes, what)
            part = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
            try:
                view.start(what + detail)
                make(part)
                publish(part, target)
            finally:
                view.finish()
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise cannot_write(target.parent.parent, error) from error
    return target


def flush(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(part: Path, target: Path) -> None:
    """Make the finished folder `part` readable by everyone, and rename it to `target`, unless that is its name."""
    for path in (*part.rglob("*"), part):
        path.chmod(0o755 if path.is_dir() else 0o644)
        flush(path)  # a power cut after the rename must not leave a folder of empty files
    part.rename(target)
    flush(target.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a small file atomically."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)


def disk_bytes(folder: Path) -> int:
    """Return the bytes that the files in a folder take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def cannot_write(cache: Path, error: OSError) -> ModelNotAvailable:
    """Return the error for a cache that cannot be written."""
    why = error.strerror or str(error)
    return ModelNotAvailable(f"cannot write the cache {cache} ({why}); set LMI_CACHE_DIR to another folder")


def remove_folder(folder: Path, why: str, view: ProgressView) -> int:
    """Remove a folder and report it. Returns the bytes freed. Raises OSError."""
    size = disk_bytes(folder)
    shutil.rmtree(folder)
    view.say(f"removed {folder}: {why}, {size} bytes")
    return size
