"""What a kind of location is. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from container.progress import ProgressView
from lmi_server.config import ModelSource


class ModelNotAvailable(Exception):
    """The model cannot be had from where it is said to be. The text is one sentence for a person."""


class Scheme(Protocol):
    """One kind of location."""

    def owns(self, source: ModelSource) -> bool:
        """Whether `source` speaks of this kind of location; the first scheme that says yes is asked."""

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        """The folder, if the model is on this disk and complete; else None. Does no work, opens no connection."""

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        """The folder, after whatever work that takes. Raises `ModelNotAvailable`."""
