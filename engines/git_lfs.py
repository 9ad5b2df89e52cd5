"""Pointers of Git LFS: short text files that a clone without Git LFS has in place of large files."""

from __future__ import annotations

from pathlib import Path

_FIRST_BYTES = b"version https://git-lfs"


def pointer_problem(path: Path) -> str:
    """Return in one sentence that a file is a Git LFS pointer; empty if it is not, or cannot be read."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_FIRST_BYTES)) == _FIRST_BYTES
    except OSError:
        return ""
    if not is_pointer:
        return ""
    return f"{path} is a Git LFS pointer, not the file itself; run git lfs pull in the model's folder"
