"""Part `batching`: speed of rolling and static batching on the same kernels and model (W3: requests with exponential
output lengths, all at once). A sequence that has ended leaves its static batch, so the last steps of a batch are short;
transformers' `generate` computes it to the end."""

from __future__ import annotations

from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Outcome, free, run_requests, trace_requests
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
        _run(context, engine, trace.first(100), "max_utilization", 256)
    rolling = _run(context, engine, trace, "max_utilization", context.size(256, 2))
    title = f"W3, {len(trace.outputs)} requests: rolling batches"
    context.results.figure(title, rolling.tokens_per_second, "tokens/s", f"{rolling.steps} steps")
    for size, target in context.size({256: "same-batch", 8: "static-8"}, {2: "same-batch"}).items():
        with context.results.guard(f"W3, static batches of {size}"):
            static = _run(context, engine, trace, "static_batch", size)
            context.results.share(
                f"{title} relative to static batches of {size}",
                rolling.tokens_per_second,
                "tokens/s",
                rolling.tokens_per_second / static.tokens_per_second,
                "the speed of static batches",
                target,
                f"static: {static.tokens_per_second:.0f} tokens/s, {static.steps} steps"
                + ("" if static.done else " until the time limit"),
            )


def _run(context: Context, engine: Engine, trace: Trace, policy: str, size: int) -> Outcome:
    """Run until all requests have finished or the time limit has passed."""
    requests = trace_requests(f"{policy} {size} {len(trace.outputs)}", trace)
    running = engine.start(policy, max_num_seqs=size)
    return run_requests(running, requests, context.device, deadline=Deadline(_SECONDS))
