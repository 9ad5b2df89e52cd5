"""Command-line options shared by the commands that send load to a server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from container.measure.bench.choice import LENGTHS, PROCESSES, LoadChoice
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.scenario import PRESETS, Scenario
from container.measure.bench.slo import Slo, parse_slo
from container.measure.bench.workload import BenchError
from container.models import tokenizer_files
from container.models.errors import ModelNotAvailable
from container.progress import view_for
from container.run import launch

Command = TypeVar("Command", bound=Callable[..., None])
_MAX_REQUESTS = 100_000
_MAX_USERS = 1000


def count_option(
    name: str, default: int, text: str, least: int = 1, most: int = 1_000_000
) -> Callable[[Command], Command]:
    """Return an option that takes an integer from `least` to `most`."""
    kind = click.IntRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def _prepare_tokenizer(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Return the folder with the tokenizer.json that a server of the model in `path` uses; other paths unchanged."""
    if path is None or not path.is_dir():
        return path
    environ, view = launch.environment(), view_for(sys.stderr)
    try:
        return tokenizer_files.obtain(path, launch.cache_dir(environ), environ, view, load_format="dummy")
    except ModelNotAvailable as error:
        raise click.UsageError(f"--tokenizer: {error}") from error
    finally:
        view.finish()


def tokenizer_option(text: str) -> Callable[[Command], Command]:
    return click.option(
        "--tokenizer", type=click.Path(path_type=Path), callback=_prepare_tokenizer, help=text
    )


seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of prompts, lengths and arrivals."
)
_POSITIVE = click.FloatRange(0, min_open=True)
dialect_option = click.option(
    "--dialect",
    type=click.Choice(sorted(DIALECTS)),
    default="lmi",
    show_default=True,
    help="API to use: lmi is POST /invocations, openai is POST /v1/completions.",
)


def _read_slo(context: click.Context, option: click.Parameter, text: str | None) -> Slo | None:
    try:
        return parse_slo(text) if text is not None else None
    except BenchError as error:
        raise click.UsageError(str(error)) from error


slo_option = click.option(
    "--slo",
    callback=_read_slo,
    help="Latency limits, such as ttft=500ms,tpot=50ms,latency=2s. Goodput counts the requests that meet all of them.",
)


def load_options(default: Scenario) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes `load` (a LoadChoice) and `timeout` (seconds) to a command.

    default: the load without a preset or a trace, for the help.
    """
    workload = default.workload
    options = (
        click.option(
            "--preset",
            type=click.Choice(list(PRESETS)),
            help="Predefined load. Other load options override it.",
        ),
        click.option(
            "--trace",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Replay a recorded trace: Mooncake JSON lines or Azure CSV.",
        ),
        click.option(
            "--scale",
            type=click.FloatRange(0, 100, min_open=True),
            help="Multiply token counts, requests, users and rates of the preset or trace; 0.1 suits a small machine.",
        ),
        click.option(
            "--requests",
            type=click.IntRange(1, _MAX_REQUESTS),
            help="Total number of requests.",
            show_default="4 for each user, or the preset's",
        ),
        click.option(
            "--users",
            type=click.IntRange(1, _MAX_USERS),
            help="Closed loop: concurrent users; each sends its next request when the previous one is complete.",
            show_default="32, or the preset's",
        ),
        click.option(
            "--ramp", type=_POSITIVE, help="Closed loop: users added per second.", show_default="all at once"
        ),
        click.option(
            "--rate", type=_POSITIVE, help="Open loop: requests per second, regardless of responses."
        ),
        click.option(
            "--arrivals",
            type=click.Choice(PROCESSES),
            help="Open loop: distribution of the times between requests.",
            show_default="poisson",
        ),
        click.option(
            "--burstiness",
            type=click.FloatRange(0.01, 1000),
            help="Open loop: shape of the gamma distribution; 1 is Poisson, lower is more bursty, higher more regular.",
        ),
        click.option("--burst", is_flag=True, help="Send all requests at once."),
        click.option(
            "--lengths",
            type=click.Choice(LENGTHS),
            show_default=f"{workload.describe()}; or the preset's",
            help="fixed: all prompts and outputs have exactly --input-tokens and --output-tokens. spread: these are"
            " means; prompts are uniform between 0.5 and 1.5 times the mean, outputs exponential and at most 4 times"
            " the mean.",
        ),
        _tokens_option("--input-tokens", "Mean number of prompt tokens.", workload.prompts.mean),
        _tokens_option(
            "--output-tokens", "Mean number of output tokens; EOS is ignored.", workload.outputs.mean
        ),
        click.option(
            "--timeout",
            type=_POSITIVE,
            default=600.0,
            show_default=True,
            help="Time limit of one request, in seconds.",
        ),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_load(**values: Any) -> None:
            load = LoadChoice(**{field.name: values.pop(field.name) for field in fields(LoadChoice)})
            command(load=load, **values)

        decorated: Callable[..., None] = with_load
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return add


def _tokens_option(name: str, text: str, mean: float) -> Callable[[Command], Command]:
    return click.option(
        name, type=click.IntRange(1, 1_000_000), help=text, show_default=f"{mean:.0f}, or the preset's"
    )
