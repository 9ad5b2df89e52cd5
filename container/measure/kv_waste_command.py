"""`lmi kv-waste`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from container.measure.kv_waste import ARMS, Arm, Waste, WasteLoad, run
from container.measure.output import json_option, show, write_json
from container.progress import view_for

_MAX_TOKENS = 1 << 20
_COLUMNS = (
    "",
    "KV waste",
    "allocated",
    "promised",
    "running",
    "loaded",
    "most",
    "preemptions",
    "recomputed",
    "steps",
)
_NOTES = (
    "KV waste: 1 - tokens stored / slots allocated, mean over the steps.",
    "Allocated: slots of blocks that sequences hold; promised: of blocks that running sequences are sure to get when "
    "they need them, so that nobody is admitted to them. Both as shares of the pool, mean over the steps. What is only "
    "promised is not allocated, and not in the waste.",
    "Running: sequences at once, mean over all steps; loaded: over those in which others waited; most: in any step. "
    "Recomputed: tokens that were computed again after a preemption.",
)


Command = TypeVar("Command", bound=Callable[..., None])


def _tokens(name: str, default: int, text: str) -> Callable[[Command], Command]:
    return click.option(
        name, type=click.IntRange(1, _MAX_TOKENS), default=default, show_default=True, help=text
    )


@click.command("kv-waste")
@click.option(
    "--requests", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="All at once."
)
@_tokens("--prompt-tokens", 512, "Of each prompt.")
@click.option(
    "--mean-output-tokens",
    type=click.FloatRange(1, _MAX_TOKENS),
    default=128.0,
    show_default=True,
    help="Of answers, exponentially distributed; longer ones than --max-new-tokens are drawn again.",
)
@_tokens("--max-new-tokens", 512, "What each request asks for.")
@_tokens("--pool-tokens", 64 * 1024, "Slots of the KV cache, the same for all.")
@_tokens("--block-size", 16, "Tokens of a page.")
@_tokens("--prefill-tokens", 4096, "Prompt tokens in a step, at most.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the lengths.")
@json_option
def kv_waste(
    requests: int,
    prompt_tokens: int,
    mean_output_tokens: float,
    max_new_tokens: int,
    pool_tokens: int,
    block_size: int,
    prefill_tokens: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Compare how well contiguous and paged allocation fill the same KV cache.

    The engine's own scheduler and allocators run the requests to their ends, without a model: a step is a step,
    whatever its size. No limit on the batch but the cache.
    """
    load = WasteLoad(
        requests,
        prompt_tokens,
        mean_output_tokens,
        max_new_tokens,
        pool_tokens,
        block_size,
        prefill_tokens,
        seed,
    )
    try:
        results = [_run(arm, load) for arm in ARMS]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    lengths = load.output_lengths()
    show(
        f"{requests} requests: {prompt_tokens} tokens in, {statistics.fmean(lengths):.0f} out on average, "
        f"at most {max_new_tokens}; {pool_tokens} slots, pages of {block_size}, seed {seed}",
        _COLUMNS,
        [_row(result) for result in results],
        _NOTES,
        json_path,
    )
    write_json({"load": asdict(load), "results": [asdict(result) for result in results]}, json_path)


def _run(arm: Arm, load: WasteLoad) -> Waste:
    view = view_for(sys.stderr)
    view.start(arm.name)
    try:
        return run(arm, load, view.update)
    finally:
        view.finish()


def _row(result: Waste) -> tuple[str, ...]:
    return (
        result.arm,
        f"{100 * result.waste:.1f} %",
        f"{100 * result.allocated:.0f} %",
        f"{100 * result.promised:.0f} %",
        f"{result.mean_running:.1f}",
        f"{result.mean_running_loaded:.1f}",
        str(result.max_running),
        str(result.preemptions),
        str(result.recomputed_tokens),
        str(result.steps),
    )
