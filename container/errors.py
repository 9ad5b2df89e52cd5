"""Errors that every command reports in one sentence."""

from __future__ import annotations


class UserError(Exception):
    """Base of errors whose message is for users. `lmi` prints it and exits with code 1."""


class BadVariable(UserError):
    """An environment variable has an invalid value."""
