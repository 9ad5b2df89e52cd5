"""Errors of commands, reported in one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from container.errors import UserError
from lmi_server.properties.problems import PropertiesError


@contextmanager
def reported(kind: type[click.ClickException] = click.ClickException) -> Iterator[None]:
    """Turn errors that users can fix, and those of the operating system, into `kind`, which has the exit code."""
    try:
        yield
    except (UserError, PropertiesError) as error:
        raise kind(str(error)) from error
    except OSError as error:
        # A bug, or click exits because the reader of stdout is gone.
        if error.errno in (None, errno.EPIPE):
            raise
        text = f"{error.filename or 'the operating system refused'}: {error.strerror}"
        if error.filename and isinstance(error, PermissionError):
            text += f" to user {os.geteuid()}; check the owner and mode of the file and its folders"
        raise kind(text) from error
