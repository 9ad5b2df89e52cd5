"""The error of this package."""

from __future__ import annotations


class BenchError(Exception):
    """A bench cannot be run. The text is a sentence for a person."""
