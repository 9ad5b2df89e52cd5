"""The `lmi kv-waste` command."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import click

from container.measure.bench.options import count_option
from container.measure.kv_waste import ALLOCATIONS, AllocationResult, WasteLoad, measure_waste
from container.measure.output import Table, json_option, publish
from container.progress import view_for

_MAX_TOKENS = 1 << 20
_COLUMNS = (
    *("", "KV waste", "allocated", "reserved", "running", "loaded", "most"),
    *("preemptions", "recomputed", "steps"),
)
_NOTES = (
    "KV waste: 1 - stored tokens / allocated slots, mean over the steps.",
    "Allocated: slots of blocks that sequences hold. Reserved: slots of blocks that are kept free for running"
    " sequences; not allocated, and not part of the waste. Both are shares of the pool, mean over the steps.",
    "Running: concurrent sequences, mean over all steps; loaded: mean over the steps in which requests waited; most: "
    "the maximum. Recomputed: tokens computed again after a preemption.",
)


@click.command("kv-waste")
@count_option("--requests", 1000, "Number of requests; all arrive at once.", most=100_000)
@count_option("--prompt-tokens", 512, "Tokens per prompt.", most=_MAX_TOKENS)
@click.option(
    "--mean-output-tokens",
    type=click.FloatRange(1, _MAX_TOKENS),
    default=128.0,
    show_default=True,
    help="Mean output length; lengths are exponentially distributed and at most --max-new-tokens.",
)
@count_option("--max-new-tokens", 512, "max_new_tokens of each request.", most=_MAX_TOKENS)
@count_option("--pool-tokens", 64 * 1024, "Size of the KV cache in tokens.", most=_MAX_TOKENS)
@count_option("--block-size", 16, "Tokens per block.", most=_MAX_TOKENS)
@count_option("--prefill-tokens", 4096, "Maximum prompt tokens per step.", most=_MAX_TOKENS)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for the output lengths.")
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
    """Compare contiguous and paged KV cache allocation.

    Runs the scheduler and the allocators of engine=MPI without a model, until all requests have finished. Only the
    KV cache limits the batch.
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
    view = view_for(sys.stderr)
    results = []
    try:
        for allocation in ALLOCATIONS:
            view.start(allocation.name)
            results.append(measure_waste(allocation, load, view.update))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    finally:
        view.finish()
    title = (
        f"{requests} requests: {prompt_tokens} tokens in, {statistics.fmean(load.output_lengths()):.0f} out on average,"
        f" at most {max_new_tokens}; {pool_tokens} slots, blocks of {block_size}, seed {seed}"
    )
    table = Table(title, _COLUMNS, tuple(map(_row, results)))
    publish([table], _NOTES, {"load": load, "results": results}, json_path)


def _row(result: AllocationResult) -> tuple[str, ...]:
    return (
        result.allocation,
        f"{100 * result.waste:.1f} %",
        f"{100 * result.allocated:.0f} %",
        f"{100 * result.reserved:.0f} %",
        f"{result.mean_running:.1f}",
        f"{result.mean_running_loaded:.1f}",
        str(result.max_running),
        str(result.preemptions),
        str(result.recomputed_tokens),
        str(result.steps),
    )
