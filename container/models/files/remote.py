"""The interface of a remote that models are fetched from. The rest, in `fetch.py`, is the same for all remotes."""

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
    """Path relative to the model's folder, with `/`. It is untrusted and is checked before it is used."""
    size: int
    """Size in bytes."""
    version: str
    """Version of the content, such as an ETag or a blob id."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of a model's optional files are fetched."""

    with_weights: bool = True
    streamed: bool = False
    """Whether weights stay at the remote. Local files then have the headers, and holes in place of the tensors."""
    gguf: str = ""
    """The GGUF file, or the quantization of the only one; empty if none is named."""
    everything: bool = False
    """Whether all files are fetched, of every kind and in all folders."""


DEFAULT_SELECTION = Selection()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a model at one point in time, as listed."""

    name: str
    """The location as users know it: `s3://bucket/prefix/`, `owner/name@main`."""
    files: tuple[RemoteFile, ...]
    selection: Selection = DEFAULT_SELECTION

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """A hash of the location and of the files' paths, sizes and versions."""
        lines = sorted(f"{file.path}\0{file.size}\0{file.version}" for file in self.files)
        return hashlib.sha256("\n".join([self.name, *lines]).encode()).hexdigest()[:16]

    def where(self, path: str) -> str:
        """Return the place of a file for messages: `s3://bucket/prefix/path` or `owner/name@main path`."""
        return f"{self.name}{'' if self.name.endswith('/') else ' '}{path}"


@dataclass(frozen=True, slots=True)
class Verification:
    """How the content of a file was verified."""

    by: str
    """The checksum that was compared, such as `sha256` or `CRC32 by part`; empty if nothing could be compared."""
    missing: str = ""
    """The reason why nothing could be compared: a phrase that follows the file's name and a colon."""


class Remote(Protocol):
    """A model at a remote location."""

    @property
    def name(self) -> str:
        """The name as in `Snapshot`; known before the first request."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        """Return all files of the model. Retries take about 10 s at most, unless a setting or the remote asks for more.

        Raises: RemoteUnreachable; ModelNotAvailable: the location does not exist or may not be read.
        """

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        """Fetch the whole file into `target` and verify it.

        `target` may contain bytes of an interrupted attempt. They are reported but not fetched again. Notes on them are
        in files beside `target` whose names begin with the name of `target`.

        Raises:
            RemoteUnreachable: no progress for too long; received bytes are kept for the next attempt.
            AccessRefused: other credentials are needed; received bytes are kept as well.
            ModelNotAvailable: the file cannot be fetched, is damaged, or has changed since the listing.
            OSError: from the local disk.
        """

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """Compare the content of `path`, a file of the right size, with the remote's.

        Raises:
            DamagedContent: the contents differ.
            ModelNotAvailable: the remote does not respond, or no longer has the file.
            OSError: from the local disk.
        """
