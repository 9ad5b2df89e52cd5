"""Part `attention`: decode attention as a share of the copy bandwidth, and prefill attention as a share of the matmul
rate and compared with torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import lmi_kernels
from lmi_kernels import ScoreRules
from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.floors import Ceilings, causal_attention_operations
from tests.gpu.kv import FALCON_40B, LLAMA, Heads, make_kv
from tests.gpu.large_kernels import decode_error
from tests.gpu.timing import Call, time_graph

_MIN_TARGET_BYTES = 0.5e9
"""Smallest KV cache in bytes to which the target of decode attention applies."""
_MIN_BYTES = 1.0e9
"""Minimum bytes that one round reads from several pools: many times the L2 cache."""

DECODES: dict[str, tuple[int, ...]] = {
    "1 x 16k": (16384,),
    "32 x 1k": (1024,) * 32,
    "32 x 4k": (4096,) * 32,
    "256 x 1k": (1024,) * 256,
    "1 x 128k + 31 x 4k": (131_072, *(4096,) * 31),
}
_TINY_DECODES = {"1 x 50 + 2 x 8": (50, 8, 8)}


@torch.inference_mode()
def run(context: Context) -> None:
    limits = ceilings.measure(context)
    heads = context.size(LLAMA, Heads(2, 1, 16))
    _decodes(context, limits, heads, 16)
    with context.results.guard("prefill, causal, head dim 128"):
        ours = _prefill(context, limits, heads, 1, context.size(8192, 40), target=True)
        _compare_with_torch(context, heads, context.size(8192, 40), ours)
    # Measure cases without a target while time is left.
    for others, block_size in context.size(((LLAMA, 64), (FALCON_40B, 16), (FALCON_40B, 64)), ()):
        _decodes(context, limits, others, block_size)
    for others, count, length in context.size(
        ((LLAMA, 1, 2048), (LLAMA, 4, 2048), (FALCON_40B, 1, 8192)), ()
    ):
        title = f"prefill, causal, head dim {others.dim}, {count} x {length}"
        if context.has_time_for(8.0, title):
            with context.results.guard(title):
                _prefill(context, limits, others, count, length)


def _decodes(context: Context, limits: Ceilings, heads: Heads, block_size: int) -> None:
    for name, lens in context.size(DECODES, _TINY_DECODES).items():
        title = f"decode, head dim {heads.dim}, {name}, pages of {block_size}"
        if context.has_time_for(8.0, title):
            with context.results.guard(title):
                _decode(context, limits, title, heads, lens, block_size)


def _decode(
    context: Context, limits: Ceilings, title: str, heads: Heads, lens: Sequence[int], block_size: int
) -> None:
    moved = heads.token_bytes * sum(lens)
    copies = 1 if context.smoke else max(2, int(-(-_MIN_BYTES // moved)))
    calls: list[Call] = []
    for i in range(copies):
        kv = make_kv(context, heads, lens, block_size, seed=i)
        q = context.random(len(lens), heads.queries, heads.dim)
        if i == 0:
            error = decode_error(q, kv, {0, len(lens) // 2, len(lens) - 1})
            if error > 1e-2:
                context.results.check(title, False, f"relative error {error:.1e}: not timed")
                return
        rules = ScoreRules(heads.dim**-0.5)
        # Planned once per step for all layers, so it is not part of a layer's time.
        plan = lmi_kernels.plan_decode(kv.sequences, heads.keys_values, heads.dim, rules.window)
        out = torch.empty_like(q)
        calls.append(partial(lmi_kernels.decode_attention, q, kv.pool, kv.sequences, plan, rules, out))
    timing = time_graph(calls, context.device, repeats=context.size(20, 1))
    share = moved / timing.median / limits.copy
    target = "decode-attention" if moved >= _MIN_TARGET_BYTES or context.smoke else ""
    context.results.time(
        title,
        timing,
        share=share,
        of="copy bandwidth",
        target=target,
        note=f"{moved / 1e9:.2f} GB of KV, {moved / timing.median / 1e12:.2f} TB/s",
    )


def _prefill(
    context: Context, limits: Ceilings, heads: Heads, count: int, length: int, target: bool = False
) -> float:
    """Return seconds per call."""
    kv = make_kv(context, heads, (length,) * count, 16)
    bounds = (torch.arange(count + 1, dtype=torch.int32) * length).to(context.device)
    rules = ScoreRules(heads.dim**-0.5)
    calls: list[Call] = []
    for _ in range(2):
        q = context.random(count * length, heads.queries, heads.dim)
        batch = q, kv.pool, kv.sequences, bounds, length, rules, torch.empty_like(q)
        calls.append(partial(lmi_kernels.varlen_attention, *batch))
    timing = time_graph(calls, context.device, repeats=context.size(20, 1))
    rate = count * causal_attention_operations(heads.queries, heads.dim, length) / timing.median
    context.results.time(
        f"prefill, causal, head dim {heads.dim}, {count} x {length}",
        timing,
        share=rate / limits.matmul,
        of="matmul rate",
        target="prefill-attention" if target else "",
        note=f"{rate / 1e12:.0f} TFLOP/s, pages of 16",
    )
    return timing.median


def _compare_with_torch(context: Context, heads: Heads, length: int, ours: float) -> None:
    """Time torch's attention on dense keys of the same sizes, with keys repeated for each query head and, if the kernel
    supports it, without. For each backend the faster variant counts."""
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        if context.device.type != "cuda":
            backend = SDPBackend.MATH
        best = float("inf")
        reasons = []
        for repeated in (True, False):
            try:
                calls = [_dense(context, heads, length, backend, repeated) for _ in range(2)]
                best = min(best, time_graph(calls, context.device, repeats=context.size(20, 1)).median)
            except RuntimeError as error:
                reasons.append(str(error).splitlines()[0][:150])
        title = f"prefill, relative to torch's {name} attention"
        if best == float("inf"):
            context.results.missing(title, f"not available: {'; '.join(reasons)}")
            continue
        rate = causal_attention_operations(heads.queries, heads.dim, length) / best
        context.results.share(
            title,
            best * 1e3,
            "ms",
            best / ours,
            f"the speed of torch with {name}",
            "prefill-cudnn" if name == "cuDNN" else "",
            f"torch: {rate / 1e12:.0f} TFLOP/s",
        )


def _dense(
    context: Context, heads: Heads, length: int, backend: SDPBackend, repeated: bool
) -> Callable[[], torch.Tensor]:
    q = context.random(1, heads.queries, length, heads.dim)
    k, v = (
        context.random(1, heads.queries if repeated else heads.keys_values, length, heads.dim)
        for _ in range(2)
    )

    def attend() -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not repeated)

    return attend
