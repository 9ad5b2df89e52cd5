"""Stop signals during a measurement."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from container.run.stop_signals import StopRequested, StopSignals

STOPPED = 130
"""Exit code after a stop signal, as in shells."""


@contextmanager
def stoppable(message: str) -> Iterator[None]:
    """Print `message` and exit with code 130 if a stop signal arrives in the block."""
    try:
        with StopSignals() as signals:
            yield
            signals.raising = False
    except StopRequested:
        click.echo(message, err=True)
        sys.exit(STOPPED)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore stop signals in the block."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
