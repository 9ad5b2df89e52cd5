"""Part `products`: matrix products with few rows as shares of their floors, with the shapes of each layer's weights and
the library that the engine uses."""

from __future__ import annotations

from functools import partial

import torch

import lmi_kernels
from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import free
from tests.gpu.floors import Ceilings, Phase, product_work
from tests.gpu.timing import Call, time_graph

ROWS = (1, 4, 16, 32, 256)
SHAPES: dict[str, tuple[int, int]] = {
    "Llama-3-8B, qkv projection": (6144, 4096),
    "Llama-3-8B, output projection": (4096, 4096),
    "Llama-3-8B, gate and up projections": (28672, 4096),
    "Llama-3-8B, down projection": (4096, 14336),
    "Llama-3-8B, LM head": (128256, 4096),
    "Falcon-40B, qkv projection": (9216, 8192),
    "Falcon-40B, output projection": (8192, 8192),
    "Falcon-40B, up projection": (32768, 8192),
    "Falcon-40B, down projection": (8192, 32768),
}
"""Output and input features."""
_MIN_BYTES = 0.4e9
"""Minimum bytes of weights that one round reads: many times the L2 cache."""


@torch.inference_mode()
def run(context: Context) -> None:
    limits = ceilings.measure(context)
    free(context.device)
    # The engine's setting: all sums are in fp32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    for name, (outputs, inputs) in context.size(SHAPES, {"tiny": (32, 16)}).items():
        if context.has_time_for(5.0, name):
            with context.results.guard(name):
                _dense(context, limits, name, outputs, inputs)
            free(context.device)
    if context.has_time_for(5.0, "Falcon-40B, sums"):
        with context.results.guard("Falcon-40B, sums"):
            _sums(context, limits)
        free(context.device)
    if context.has_time_for(15.0, "Mixtral-8x7B, experts"):
        with context.results.guard("Mixtral-8x7B, experts"):
            _experts(context, limits)


def _dense(context: Context, limits: Ceilings, name: str, outputs: int, inputs: int) -> None:
    weights = _weights(context, outputs, inputs)
    for rows in context.size(ROWS, (2,)):
        x = context.random(rows, inputs, dtype=context.size(torch.bfloat16, torch.float32))
        calls: list[Call] = [partial(lmi_kernels.linear, x, weight) for weight in weights]
        _time(context, limits, f"{name}, {rows} rows", calls, product_work(rows, outputs, inputs))


def _sums(context: Context, limits: Ceilings) -> None:
    """Time an output projection whose result is added to that of the MLP: by the product itself, and after it."""
    outputs, inputs = context.size(SHAPES["Falcon-40B, output projection"], (32, 16))
    weights, rows = _weights(context, outputs, inputs), context.size(32, 2)
    x, total = (
        context.random(rows, width, dtype=context.size(torch.bfloat16, torch.float32))
        for width in (inputs, outputs)
    )
    sums: dict[str, list[Call]] = {
        "by the product": [partial(lmi_kernels.linear, x, weight, add_to=total) for weight in weights],
        "after the product": [partial(_add_after, x, weight, total) for weight in weights],
    }
    for how, calls in sums.items():
        name = f"Falcon-40B, output projection, {rows} rows, added {how}"
        _time(context, limits, name, calls, product_work(rows, outputs, inputs))


def _add_after(x: torch.Tensor, weight: lmi_kernels.LinearWeight, total: torch.Tensor) -> torch.Tensor:
    return total.add_(lmi_kernels.linear(x, weight))


def _weights(context: Context, outputs: int, inputs: int) -> list[lmi_kernels.LinearWeight]:
    copies = 1 if context.smoke else max(2, int(-(-_MIN_BYTES // (2 * outputs * inputs))))
    return [lmi_kernels.pack(context.random(outputs, inputs, scale=inputs**-0.5)) for _ in range(copies)]


def _experts(context: Context, limits: Ceilings) -> None:
    """Time both products and the kernels between them. Random logits choose experts uniformly."""
    hidden, middle, count, top_k = context.size((4096, 14336, 8, 2), (32, 48, 3, 2))
    weights = lmi_kernels.pack_experts(
        context.random(count, 2 * middle, hidden, scale=hidden**-0.5),
        context.random(count, hidden, middle, scale=middle**-0.5),
    )
    for rows in context.size(ROWS, (2,)):
        x, logits = context.random(rows, hidden), context.random(rows, count)
        touched = int(logits.float().topk(top_k).indices.unique().numel())
        work = Phase(2.0 * touched * 3 * middle * hidden, 2.0 * rows * top_k * 3 * middle * hidden)
        calls: list[Call] = [partial(lmi_kernels.experts, x, logits, weights, top_k)]
        _time(context, limits, f"Mixtral-8x7B, {touched} of {count} experts, {rows} rows", calls, work)


def _time(context: Context, limits: Ceilings, name: str, calls: list[Call], work: Phase) -> None:
    timing = time_graph(calls, context.device, repeats=context.size(20, 1))
    bound = "memory" if work.bytes / limits.copy > work.operations / limits.matmul else "arithmetic"
    context.results.time(
        name,
        timing,
        share=work.floor(limits) / timing.median,
        of="its floor",
        note=f"{work.bytes / timing.median / 1e12:.2f} TB/s, bound by {bound}",
    )
