"""What a place that models are fetched from has to tell; `fetch.py` does the rest, the same for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Report = Callable[[int], None]
"""Called with the number of bytes that have come since the last call; from any thread."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model, as its remote knows it."""

    path: str
    """Relative to the model's folder, with `/`; comes from outside and is checked before it becomes a path."""
    size: int
    version: str
    """Changes when the content does: an ETag, a blob id."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model at one moment: what a listing gave."""

    name: str
    """The place in words that the user knows: `s3://bucket/prefix/`, `owner/name@main`."""
    files: tuple[RemoteFile, ...]
    """The files that are fetched, and no others, in a fixed order."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """Names the content: two listings with the same files in the same versions have the same digest."""
        lines = sorted(f"{file.path}\0{file.size}\0{file.version}" for file in self.files)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class Remote(Protocol):
    """One model in one place."""

    @property
    def name(self) -> str:
        """As `Snapshot.name`; also known before anything was asked."""

    def snapshot(self) -> Snapshot:
        """Ask for the listing. Raises `ModelNotAvailable`, within 10 s, retries included."""

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> None:
        """Make `target` the file's whole content, verified against what the remote knows of it.

        `target` may hold the beginning from an earlier, broken attempt, which is then not fetched again. May be called
        from several threads for different files.

        Raises `ModelNotAvailable`: it cannot be had, is damaged, or is no longer what the snapshot says.
        """
