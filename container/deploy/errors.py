"""The error of `lmi deploy`."""

from __future__ import annotations


class CannotDeploy(Exception):
    """The endpoint cannot be planned, created or compared. The text is for users."""
