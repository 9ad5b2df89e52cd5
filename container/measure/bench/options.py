"""Command-line options of every command that puts load on a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from container.measure.bench.dialects import DIALECTS
from container.measure.bench.lengths import Lengths

Command = TypeVar("Command", bound=Callable[..., None])


def count_option(
    name: str, default: int, text: str, least: int = 1, most: int = 1_000_000
) -> Callable[[Command], Command]:
    """An option that takes a whole number."""
    kind = click.IntRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def tokenizer_option(text: str) -> Callable[[Command], Command]:
    return click.option("--tokenizer", type=click.Path(path_type=Path), help=text)


seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of prompts and lengths."
)


def load_options(lengths: Lengths, output_tokens: int) -> Callable[[Command], Command]:
    """Give a command `users`, `lengths`, `input_tokens`, `output_tokens`, `dialect` and `timeout` (seconds).

    lengths, output_tokens: the defaults.
    """
    options = (
        count_option("--users", 32, "Concurrent users; each has one request in flight.", most=1000),
        click.option(
            "--lengths",
            type=click.Choice([one.value for one in Lengths]),
            default=lengths.value,
            show_default=True,
            help="fixed: all prompts and answers have exactly the token counts of the next two options. spread: these"
            " are means; prompts are uniform between half and one and a half times the mean, answers exponential and"
            " at most 4 times the mean.",
        ),
        count_option("--input-tokens", 32, "Tokens of a prompt."),
        count_option("--output-tokens", output_tokens, "Tokens of an answer; EOS is ignored."),
        click.option(
            "--dialect",
            type=click.Choice(sorted(DIALECTS)),
            default="lmi",
            show_default=True,
            help="API to use: lmi is POST /invocations, openai is POST /v1/completions.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(0, min_open=True),
            default=600.0,
            show_default=True,
            help="Time limit of one request, in seconds.",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
