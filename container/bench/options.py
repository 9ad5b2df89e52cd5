"""Options that every command has which puts load on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from container.bench.dialects import DIALECTS

MAX_USERS = 1000
MAX_TOKENS = 1_000_000

Command = TypeVar("Command", bound=Callable[..., None])

_OPTIONS = (
    click.option(
        "--users", type=click.IntRange(1, MAX_USERS), default=32, show_default=True, help="At the same time."
    ),
    click.option(
        "--input-tokens",
        type=click.IntRange(1, MAX_TOKENS),
        default=32,
        show_default=True,
        help="Of each prompt.",
    ),
    click.option(
        "--output-tokens",
        type=click.IntRange(1, MAX_TOKENS),
        default=128,
        show_default=True,
        help="Of each answer.",
    ),
    click.option("--dialect", type=click.Choice(sorted(DIALECTS)), default="lmi", show_default=True),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        show_default=True,
        help="Seconds for one request.",
    ),
)


def load_options(command: Command) -> Command:
    """Give a command `users`, `input_tokens`, `output_tokens`, `dialect` and `timeout` (seconds)."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
