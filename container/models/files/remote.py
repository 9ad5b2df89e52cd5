"""The interface of a place that models are fetched from; `fetch.py` does the rest, the same for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Report = Callable[[int], None]
"""Called with the number of bytes received since the last call; from any thread."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model, as the remote lists it."""

    path: str
    """Relative to the model's folder, with `/`; untrusted, so it is checked before it becomes a path."""
    size: int
    """Bytes."""
    version: str
    """Changes when the content does: an ETag, a blob id."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Optional files of a model."""

    with_code: bool = False
    """Whether the model's *.py are fetched."""
    with_weights: bool = True
    streamed: bool = False
    """Whether weights stay where they are: their files have headers here, and holes where tensors are."""
    gguf: str = ""
    """The GGUF file, or the quantisation of the only one; empty: none is named."""
    everything: bool = False
    """Whether all files are fetched, of whatever kind and in all folders."""


WITHOUT_CODE = Selection()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model at one moment: the result of a listing."""

    name: str
    """The place, as the user knows it: `s3://bucket/prefix/`, `owner/name@main`."""
    files: tuple[RemoteFile, ...]
    selection: Selection = WITHOUT_CODE

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """A hash of the content: listings of one place with the same files and versions have the same digest."""
        lines = sorted(f"{file.path}\0{file.size}\0{file.version}" for file in self.files)
        return hashlib.sha256("\n".join([self.name, *lines]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Verification:
    """How the content of a file was verified."""

    by: str
    """What was compared: `sha256`, `CRC32 by part`; empty when nothing could be compared."""
    missing: str = ""
    """Why nothing could be compared: a phrase that follows the file's name and a colon."""


class Remote(Protocol):
    """One model in one place."""

    @property
    def name(self) -> str:
        """As in `Snapshot`; known before the first request."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All files of the model, within 10 s including retries.

        Raises: RemoteUnreachable; ModelNotAvailable: the place does not exist or may not be read.
        """

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        """Fetch the whole file into `target` and verify it.

        `target` may hold bytes of an earlier, interrupted attempt, which are reported but not fetched again. Notes for
        that are kept in files beside it whose names begin with its name.

        Raises:
            RemoteUnreachable: given up without progress; received bytes are kept for the next attempt.
            ModelNotAvailable: it cannot be had, is damaged, or has changed since the listing.
            OSError: from the local disk.
        """

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """Compare the content of `path`, a file of the right size, with the remote's.

        Raises:
            DamagedContent: they differ.
            ModelNotAvailable: the remote does not answer, or no longer has the file.
            OSError: from the local disk.
        """
