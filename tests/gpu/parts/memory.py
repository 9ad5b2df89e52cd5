"""Part `memory`: the KV cache's size by option.gpu_memory_utilization, and whether the engine's memory stays within
that share of the device under load."""

from __future__ import annotations

import torch

from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, free, greedy, random_prompts, run_requests
from tests.gpu.shapes import real, write

MODEL = "llama-3-8b"
_SHARES = (0.5, 0.9)
_MAX_UNUSED = 0.06
"""Share of the device's memory that may stay free below the limit. The largest step needs it while it runs."""


def run(context: Context) -> None:
    for share in context.size(_SHARES, (0.5,)):
        title = f"{MODEL}, utilization {share}"
        if context.has_time_for(30.0, title):
            with context.results.guard(title):
                _measure(context, title, share)
            free(context.device)


def _measure(context: Context, title: str, share: float) -> None:
    folder = write(real(MODEL, context.smoke), context.folder / MODEL)
    # Half of a GPU fits 8 billion weights and 256 sequences. On a CPU no memory is measured.
    tokens = None if context.device.type == "cuda" else 200
    limits = Limits(context.size(256, 2), context.size(4096, 40), context.size(8192, 16), tokens)
    engine = Engine(folder, context.device, limits, utilization=share)
    cache, results = engine.runner.cache, context.results
    results.figure(
        f"{title}: KV cache capacity",
        cache.num_blocks * cache.block_size,
        "tokens",
        f"{cache.num_bytes / 1e9:.2f} GB",
    )
    _check_memory(context, f"{title}: after startup", share)
    lengths = context.size((3000,) * 8 + (200,) * 300, (12, 3))
    prompts = random_prompts(engine.config.vocab_size, lengths, 0)
    requests = [greedy(f"{share} {i}", prompt, context.size(20, 2)) for i, prompt in enumerate(prompts)]
    run_requests(engine.start(), requests, context.device)
    _check_memory(context, f"{title}: after requests", share)


def _check_memory(context: Context, title: str, share: float) -> None:
    if context.device.type != "cuda":
        context.results.missing(title, "requires a GPU")
        return
    left, total = torch.cuda.mem_get_info(context.device)
    used = (total - left) / total
    context.results.check(
        title,
        share - _MAX_UNUSED <= used <= share + 0.005,
        f"{100 * used:.1f} % of {total / 1e9:.1f} GB are used by all processes",
    )
    reserved, peak = (
        torch.cuda.memory_reserved(context.device),
        torch.cuda.max_memory_reserved(context.device),
    )
    context.results.figure(
        f"{title}: memory outside torch's allocator",
        (total - left - reserved) / 1e9,
        "GB",
        f"allocator: {reserved / 1e9:.2f} GB reserved, peak {peak / 1e9:.2f} GB",
    )
