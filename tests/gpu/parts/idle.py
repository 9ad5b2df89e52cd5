"""Part `idle`: gaps between the GPU's kernels while all sequences are decoding, from the profiler. It has a process of
its own, because the profiler may slow down everything that runs after it."""

from __future__ import annotations

from tests.gpu import timeline
from tests.gpu.context import Context
from tests.gpu.engine import free
from tests.gpu.generating import decoding_batch
from tests.gpu.parts.steps import load

_MODELS = ("llama-3-8b", "qwen3-0.6b")


def run(context: Context) -> None:
    for name in context.size(_MODELS, _MODELS[:1]):
        with context.results.guard(name):
            _measure(context, name)
        free(context.device)


def _measure(context: Context, name: str) -> None:
    batch, longest = context.size(256, 2), context.size(2048, 32)
    engine = load(context, name, batch, longest)
    with decoding_batch(engine, batch, longest // 2) as decodes:
        for _ in range(context.size(4, 1)):
            decodes.step()
        title = f"{name}, {batch} sequences: GPU idle time, from the profiler"
        if context.device.type != "cuda":
            context.results.missing(title, "the profiler requires a GPU")
            return
        context.results.figure(
            title,
            100 * timeline.idle_share([decodes.step] * 20),
            "%",
            "gaps above 5 us; the profiler slows the host",
        )
