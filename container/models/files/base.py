"""What a kind of location is. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from container.progress import ProgressView
from lmi_server.config import ModelSource


class ModelNotAvailable(Exception):
    """The model cannot be had from where it is said to be. The text is one sentence for a person."""


class RemoteUnreachable(ModelNotAvailable):
    """The remote gives no answer now: no network, refused, timed out, or nothing but 'try later' (500, 503).

    Nothing is known to be wrong with the model: a complete copy is served instead, and what came is kept.
    """


class DamagedContent(ModelNotAvailable):
    """A file's content is not what its remote has."""


class Scheme(Protocol):
    """One kind of location."""

    def owns(self, source: ModelSource) -> bool:
        """Whether `source` speaks of this kind of location; the first scheme that says yes is asked."""

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        """The folder, if the model is on this disk and complete; else None. Does no work, opens no connection."""

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        """The folder, after whatever work that takes. Raises `ModelNotAvailable`."""


class RemoteScheme(Scheme, Protocol):
    """A kind of location that models are fetched from, by the one way in `fetch.py`."""

    def refusal(self, source: ModelSource) -> str | None:
        """Why a source of this kind can never be had, as far as its address tells; None when it may."""

    def name(self, source: ModelSource) -> str:
        """`Snapshot.name` of the source's copies. Raises `ModelNotAvailable` when it can never be had."""

    def verify(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        """As `obtain`; but a copy that is there is compared with its remote. Raises `ModelNotAvailable`."""
