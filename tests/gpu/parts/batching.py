"""Part `batching`: speed of rolling and static batching on the same kernels and model (W3: requests with exponential
output lengths, all at once). A sequence that has ended leaves its static batch, so the last steps of a batch are short;
transformers' `generate` computes it to the end."""

from __future__ import annotations

from dataclasses import dataclass

from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Outcome, free, run_requests, trace_requests
from tests.gpu.parts.workload import engine_limits
from tests.gpu.shapes import real, write
from tests.gpu.timing import Deadline
from tests.gpu.traces import Trace, tiny, w3

MODEL = "llama-3-8b"
_CAP = 512
_SECONDS = 45.0
"""Time limit of one configuration."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rolling batches of one size, and static ones of the same size or another."""

    num_requests: int
    rolling: int
    static: int
    target: str


# Larger batches gain less from rolling: in steps of 256 sequences most of the time goes to keys and values, of which
# there are as many under static batches.
COMPARISONS = (Comparison(1000, 256, 8, "static-8"), Comparison(640, 32, 32, "same-batch"))
_TINY = (Comparison(4, 2, 2, "same-batch"),)


def run(context: Context) -> None:
    ceilings.measure(context)
    free(context.device)
    config = real(MODEL, context.smoke)
    comparisons = context.size(COMPARISONS, _TINY)
    largest = max(each.num_requests for each in comparisons)
    trace = tiny(config["vocab_size"]) if context.smoke else w3(largest, _CAP, config["vocab_size"])
    engine = Engine(write(config, context.folder / MODEL), context.device, engine_limits(context, trace))
    if not context.smoke:
        _run(context, engine, trace.first(100), "max_utilization", 256)
    for each in comparisons:
        title = f"W3, {each.num_requests} requests: rolling batches of {each.rolling}"
        with context.results.guard(title):
            _compare(context, engine, trace.first(each.num_requests), each, title)


def _compare(context: Context, engine: Engine, trace: Trace, comparison: Comparison, title: str) -> None:
    rolling = _run(context, engine, trace, "max_utilization", comparison.rolling)
    static = _run(context, engine, trace, "static_batch", comparison.static)
    context.results.share(
        f"{title} relative to static batches of {comparison.static}",
        rolling.tokens_per_second,
        "tokens/s",
        rolling.tokens_per_second / static.tokens_per_second,
        "the speed of static batches",
        comparison.target,
        f"{_steps(rolling)}; static: {static.tokens_per_second:.0f} tokens/s, {_steps(static)}",
    )


def _steps(outcome: Outcome) -> str:
    return f"{outcome.steps} steps" + ("" if outcome.done else " until the time limit")


def _run(context: Context, engine: Engine, trace: Trace, policy: str, size: int) -> Outcome:
    """Run until all requests have finished or the time limit has passed."""
    requests = trace_requests(f"{policy} {size} {len(trace.outputs)}", trace)
    running = engine.start(policy, max_num_seqs=size)
    return run_requests(running, requests, context.device, deadline=Deadline(_SECONDS))
