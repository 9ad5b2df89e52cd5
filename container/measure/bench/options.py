"""Options of every command that puts load on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from container.measure.bench.dialects import DIALECTS
from container.measure.bench.lengths import Lengths

MAX_USERS = 1000
MAX_TOKENS = 1_000_000

Command = TypeVar("Command", bound=Callable[..., None])


def load_options(lengths: Lengths, output_tokens: int) -> Callable[[Command], Command]:
    """Give a command `users`, `lengths`, `input_tokens`, `output_tokens`, `dialect` and `timeout` (seconds).

    Args:
        lengths, output_tokens: their defaults.
    """
    options = (
        click.option(
            "--users",
            type=click.IntRange(1, MAX_USERS),
            default=32,
            show_default=True,
            help="Each has one request in flight.",
        ),
        click.option(
            "--lengths",
            type=click.Choice([one.value for one in Lengths]),
            default=lengths.value,
            show_default=True,
            help="fixed: all prompts and answers have as many tokens as the next two options say. spread: these are"
            " means; prompts are uniform from half to one and a half times theirs, answers exponential and at most 4"
            " times theirs.",
        ),
        click.option(
            "--input-tokens",
            type=click.IntRange(1, MAX_TOKENS),
            default=32,
            show_default=True,
            help="Tokens of a prompt.",
        ),
        click.option(
            "--output-tokens",
            type=click.IntRange(1, MAX_TOKENS),
            default=output_tokens,
            show_default=True,
            help="Tokens of an answer; EOS is ignored.",
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

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
