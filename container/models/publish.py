"""How a folder of the cache comes to be, under a lock, made beside, flushed, renamed; and how one goes.

A folder that is there under its name is complete, whatever was killed or cut before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from container.progress import ProgressView


@contextmanager
def locked(path: Path, what: str, view: ProgressView) -> Iterator[None]:
    """Hold the file's lock; the kernel lets go of it when the process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            view.say(f"another process is {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock that `locked` takes, unless another process has it: whether it is held."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def lacking_space(folder: Path, needed_bytes: int, what: str) -> str | None:
    """One sentence when `folder`'s disk has less than `needed_bytes` free; else None."""
    free = shutil.disk_usage(folder).free
    if free >= needed_bytes:
        return None
    return (
        f"{folder} has {free >> 20} MiB free, {what} takes {needed_bytes >> 20} MiB; "
        "LMI_CACHE_DIR names another place"
    )


def flush(path: Path) -> None:
    """Make what the file or folder holds survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(part: Path, target: Path) -> None:
    """Give the finished folder `part`, whose entries are all files, its name; readable by everyone."""
    for file in part.iterdir():
        file.chmod(0o644)
        flush(file)  # a power cut after the rename must not leave a folder of empty files
    part.chmod(0o755)
    flush(part)
    part.rename(target)
    flush(target.parent)


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that it is there as it was or as it shall be, never in between."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)


def remove_folder(folder: Path, why: str, view: ProgressView) -> int:
    """Remove a folder with all that is in it, and say so. Returns the bytes that became free. Raises OSError."""
    size = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    view.say(f"removed {folder}: {why}, {size} bytes")
    return size
