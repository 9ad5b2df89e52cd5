"""Part `times`: time of a step by kernel, from the profiler's timeline. It has a process of its own, because the
profiler may slow down everything that runs after it."""

from __future__ import annotations

from tests.gpu import timeline
from tests.gpu.context import Context
from tests.gpu.engine import free
from tests.gpu.parts.steps import decode_plan, load, prefill_plan, replay, step
from tests.gpu.timing import Call

MODEL = "llama-3-8b"
_KERNELS = 14
"""Number of kernels to list, slowest first. The others share one line."""
_STEPS = 5


def run(context: Context) -> None:
    engine = load(context, MODEL, context.size(256, 2), context.size(2048, 64))
    engine.fill_cache()
    for batch in context.size((1, 32, 256), (2,)):
        title = f"decode of {batch}"
        with context.results.guard(title):
            _table(context, title, replay(engine, decode_plan(engine, batch, context.size(1024, 20))))
    length = context.size(2048, 16)
    with context.results.guard(f"prefill of {length}"):
        _table(context, f"prefill of {length}", step(engine, prefill_plan(engine, length)))
    del engine
    free(context.device)


def _table(context: Context, title: str, call: Call) -> None:
    call()
    if context.device.type != "cuda":
        context.results.missing(title, "the profiler requires a GPU")
        return
    kernels = timeline.kernels([call] * _STEPS)
    total = sum(each.seconds for each in kernels)
    rest = kernels[_KERNELS:]
    for each in kernels[:_KERNELS]:
        context.results.share(
            f"{title}: {each.name}",
            each.seconds / _STEPS * 1e3,
            "ms",
            each.seconds / total,
            "the time of all kernels",
            note=f"{each.count / _STEPS:.0f} launches, {each.seconds / each.count * 1e6:.1f} us each",
        )
    count = sum(each.count for each in kernels)
    context.results.figure(f"{title}: other kernels", sum(e.seconds for e in rest) / _STEPS * 1e3, "ms")
    context.results.figure(
        f"{title}: all kernels", total / _STEPS * 1e3, "ms", f"{count / _STEPS:.0f} launches per step"
    )
