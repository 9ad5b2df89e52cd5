"""What a peer's file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contender import Contender

MAX_SEQUENCES = 32
"""Sequences that an engine computes at once, the same everywhere."""
KV_CACHE_GB = 2


@dataclass(frozen=True, slots=True)
class Site:
    """Where a peer is made ready."""

    model: Path
    """A Hugging Face folder, read only."""
    folder: Path
    """Its own; everything that it downloads or converts stays there."""
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peer:
    """A name, and how it is made ready."""

    name: str
    family: str
    """Peers of a family share a folder."""
    prepare: Callable[[Site], Contender]
    """Installs and converts what is missing. Raises: Unavailable."""
