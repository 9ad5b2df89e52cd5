"""An error that every command reports in one sentence."""

from __future__ import annotations


class BadVariable(Exception):
    """An environment variable has an invalid value. The message is for users."""
