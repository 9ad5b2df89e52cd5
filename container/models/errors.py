"""Errors of models that cannot be obtained."""

from __future__ import annotations

from container.errors import UserError


class ModelNotAvailable(UserError):
    """A model cannot be obtained from its location. The message is one sentence for users."""


class RemoteUnreachable(ModelNotAvailable):
    """A remote does not respond now: no network, connection refused, timeout, or a temporary status (500, 503).

    The model itself may be fine, so a complete cached copy is served instead, and fetched bytes are kept.
    """


class AccessRefused(ModelNotAvailable):
    """A remote refuses access: no usable credentials, expired ones, or no permission.

    No cached copy is served instead, but fetched bytes are kept, because the user may renew the credentials.
    """


class DiskFull(ModelNotAvailable):
    """The disk has too little space. Fetched bytes are kept, because the user may free some."""


class DamagedContent(ModelNotAvailable):
    """A file's content differs from the remote's."""


def shorten(text: object) -> str:
    """Return the text on one line, truncated to 200 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= 200 else f"{line[:200]}..."
