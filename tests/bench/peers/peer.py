"""Definition of a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contender import Contender

MAX_SEQUENCES = 32
"""Maximum number of running sequences, the same for all engines."""
KV_CACHE_GB = 2


@dataclass(frozen=True, slots=True)
class Site:
    """Model and folder for the preparation of a peer."""

    model: Path
    """Hugging Face folder, read-only."""
    folder: Path
    """The peer's own folder, for everything that it downloads or converts."""
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and its preparation."""

    name: str
    family: str
    """Peers of a family share a folder."""
    prepare: Callable[[Site], Contender]
    """Install and convert what is missing. Raises: Unavailable."""
