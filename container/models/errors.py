"""Errors of models that cannot be had."""

from __future__ import annotations


class ModelNotAvailable(Exception):
    """A model cannot be had from its location. The text is one sentence for users."""


class RemoteUnreachable(ModelNotAvailable):
    """A remote does not answer now: no network, refused, timed out, or only 'try later' (500, 503).

    Nothing is known to be wrong with the model: a complete copy is served instead, and fetched bytes are kept.
    """


class DamagedContent(ModelNotAvailable):
    """A file's content differs from its remote's."""


def one_line(text: object) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= 200 else f"{line[:200]}..."
