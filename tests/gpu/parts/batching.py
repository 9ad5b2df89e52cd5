"""Part `batching`: speed of rolling and static batching on the same kernels and model (W3: requests with exponential
output lengths, all at once)."""

from __future__ import annotations

from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import Engine, free, run_requests, trace_requests
from tests.gpu.parts.workload import engine_limits
from tests.gpu.shapes import real, write
from tests.gpu.timing import Deadline
from tests.gpu.traces import Trace, tiny, w3

MODEL = "llama-3-8b"
_REQUESTS, _CAP = 1000, 512
_SECONDS = 45.0
"""Time limit of one configuration."""


def run(context: Context) -> None:
    ceilings.measure(context)
    free(context.device)
    config = real(MODEL, context.smoke)
    trace = tiny(config["vocab_size"]) if context.smoke else w3(_REQUESTS, _CAP, config["vocab_size"])
    engine = Engine(write(config, context.folder / MODEL), context.device, engine_limits(context, trace))
    if not context.smoke:
        _speed(context, engine, trace.first(100), "max_utilization", 256)
    rolling = _speed(context, engine, trace, "max_utilization", context.size(256, 2))
    context.results.figure(f"W3, {len(trace.outputs)} requests: rolling batches", rolling, "tokens/s")
    for size, target in context.size({256: "same-batch", 8: "static-8"}, {2: "same-batch"}).items():
        with context.results.guard(f"W3, static batches of {size}"):
            static = _speed(context, engine, trace, "static_batch", size)
            context.results.share(
                f"W3, {len(trace.outputs)} requests: rolling batches relative to static batches of {size}",
                rolling,
                "tokens/s",
                rolling / static,
                "the speed of static batches",
                target,
                f"static: {static:.0f} tokens/s",
            )


def _speed(context: Context, engine: Engine, trace: Trace, policy: str, size: int) -> float:
    """Return tokens/s until all requests have finished or the time limit has passed."""
    requests = trace_requests(f"{policy} {size} {len(trace.outputs)}", trace)
    running = engine.start(policy, max_num_seqs=size)
    return run_requests(running, requests, context.device, deadline=Deadline(_SECONDS)).tokens_per_second
