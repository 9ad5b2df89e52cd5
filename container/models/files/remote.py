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
    """Bytes."""
    version: str
    """Changes when the content does: an ETag, a blob id."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model at one moment: what a listing gave."""

    name: str
    """The place in words that the user knows: `s3://bucket/prefix/`, `owner/name@main`."""
    files: tuple[RemoteFile, ...]
    """All that is there, as it was listed; `fetch.py` checks the names and chooses what serving needs."""
    with_code: bool = False
    """Whether the model's own *.py are wanted too."""
    with_weights: bool = True
    """Whether weights are wanted."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """Names the content: listings of one place with the same files in the same versions have the same digest."""
        lines = sorted(f"{file.path}\0{file.size}\0{file.version}" for file in self.files)
        return hashlib.sha256("\n".join([self.name, *lines]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Verification:
    """How the content of a file was compared with what its remote knows of it."""

    by: str
    """What was compared: `sha256`, `CRC32 by part`; empty where there was nothing to compare with."""
    missing: str = ""
    """Why there was nothing: a phrase that follows the file's name and a colon."""


class Remote(Protocol):
    """One model in one place."""

    @property
    def name(self) -> str:
        """As `Snapshot.name`; also known before anything was asked."""

    def snapshot(self) -> Snapshot:
        """Ask for the listing, within 10 s, retries included.

        Raises:
            RemoteUnreachable: no answer. A complete copy in the cache is served then.
            ModelNotAvailable: a definite answer: there is no such place, or it may not be read.
        """

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        """Make `target` the file's whole content, verified against what the remote knows of it.

        `target` may hold the beginning from an earlier, broken attempt, which is then not fetched again (but is
        reported). Whatever must be remembered for that is kept in files beside it that begin with its name.

        Raises:
            RemoteUnreachable: given up without progress; what came is kept for the next attempt.
            ModelNotAvailable: it cannot be had, is damaged, or is no longer what the snapshot says.
            OSError: from the local disk.
        """

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """Compare `path`, a file of the right size, with what the remote knows of the file's content.

        Raises:
            DamagedContent: they differ.
            ModelNotAvailable: the remote cannot be asked, or has no such file any more.
            OSError: from the local disk.
        """
