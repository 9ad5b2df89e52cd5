"""Part `tune`: search for faster launch parameters on this device, and write them to a folder next to the results, in
the format of kernels/lmi_kernels/tuned/<device>.json. The most important kernels come first. Kernels without time keep
their parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import torch

import lmi_kernels
from lmi_kernels import ScoreRules, tuning
from lmi_kernels.attention.decode_plan import tuning_key
from lmi_kernels.attention.varlen import tile_key
from tests.gpu import sweep
from tests.gpu.context import Context
from tests.gpu.kv import FALCON_40B, LLAMA, Heads, make_kv
from tests.gpu.sweep import Search
from tests.gpu.timing import Call, Deadline

_RESERVE_SECONDS = 15.0
"""Seconds for the measurement that is running at the deadline."""

_DECODE = {
    "block_n": (32, 64, 128),
    "num_stages": (2, 3, 4, 5),
    "blocks_per_multiprocessor": (1, 2, 3, 4, 6),
    "num_warps": (2, 4, 8),
    "min_tiles": (1, 2, 4, 8),
}
_PREFILL = {
    "block_n": (32, 64, 128),
    "num_stages": (2, 3, 4),
    "num_warps": (4, 8),
    "block_m": (64, 128),
    "edge_n": (32, 64, 128),
}
_FEW_ROWS = {
    "block_n": (32, 64, 128),
    "num_stages": (2, 3, 4),
    "num_warps": (2, 4, 8),
    "edge_n": (32, 64, 128),
}
_MATMUL = {
    "block_n": (32, 64, 128, 256),
    "block_k": (32, 64, 128, 256),
    "num_stages": (2, 3, 4, 5, 6),
    "num_warps": (4, 8),
    "group_m": (1, 4, 8, 16),
}
_EXPERT_ROWS = {"8": 32, "more": 2048, "1": 1, "48": 192, "24": 96}
"""Rows by tuning key: with so many rows, the mean of Mixtral's rows per expert (2 of 8 are chosen) selects the key."""


def searches(context: Context) -> Iterator[Search]:
    """Yield the searches in order of importance. Each makes its inputs when it starts."""
    if context.smoke:
        heads = Heads(2, 1, 16)
        key = tuning_key(heads.dim)
        yield Search("decode_attention", key, {"block_n": (32, 64)}, lambda: _decode(context, heads, [(40,)]))
        return
    for heads in (LLAMA, FALCON_40B):
        key = tuning_key(heads.dim)
        yield Search("decode_attention", key, _DECODE, lambda heads=heads: _decodes(context, heads))
    for key, rows in _EXPERT_ROWS.items():
        for operation in ("experts_gate_up", "experts_down"):
            yield Search(operation, key, _MATMUL, lambda rows=rows: _experts(context, rows))
    for length, space in ((4096, _PREFILL), (1, _FEW_ROWS)):
        for heads in (LLAMA, FALCON_40B):
            yield Search(
                "varlen_attention",
                _tile_key(context, heads, length),
                space,
                lambda heads=heads, length=length: _chunks(context, heads, length),
                # Tiles with masks begin where tiles without masks end.
                lambda parameters: parameters["block_n"] % parameters["edge_n"] == 0,
            )


@torch.inference_mode()
def run(context: Context) -> None:
    deadline = Deadline(context.deadline.left - _RESERVE_SECONDS)
    name = tuning.tables(context.device)[0]
    winners: dict[str, dict[str, tuning.Parameters]] = {}
    for search in searches(context):
        title = f"{search.operation}, {search.key}"
        if deadline.left < context.size(30.0, 0.0):
            context.results.figure(title, 0.0, "configurations tried", "no time left: parameters unchanged")
            continue
        with context.results.guard(title):
            best = sweep.climb(search, context.device, deadline, context.size(10, 1))
            winners.setdefault(search.operation, {})[search.key] = best.parameters
            context.results.figure(
                title,
                best.num_tried,
                "configurations tried",
                f"{best.before * 1e6:.1f} us before, {best.after * 1e6:.1f} us after: {json.dumps(best.parameters)}",
            )
            for parameters in best.incorrect:
                context.results.check(f"{title}: correct with {parameters}", False)
            _write(context, name, winners)


def _write(context: Context, device_name: str, winners: dict[str, dict[str, tuning.Parameters]]) -> None:
    """Write all of the device's parameters, the new ones included."""
    table = {operation: dict(keys) for operation, keys in tuning._table(device_name).items()}
    for operation, keys in winners.items():
        table.setdefault(operation, {}).update(keys)
    file = context.out / "tuned" / f"{device_name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"wrote {file}", flush=True)


def _tile_key(context: Context, heads: Heads, length: int) -> str:
    q = torch.empty(1, 1, heads.dim, dtype=torch.bfloat16, device=context.device)
    return tile_key(q, length * heads.queries // heads.keys_values)


def _decodes(context: Context, heads: Heads) -> list[list[Call]]:
    """Return one group per case, so that all cases have the same weight."""
    return _decode(context, heads, [(4096,) * 32, (1024,) * 256, (16384,)])


def _decode(context: Context, heads: Heads, cases: Sequence[tuple[int, ...]]) -> list[list[Call]]:
    groups = []
    for lens in cases:
        copies = 1 if context.smoke else max(2, int(-(-0.4e9 // (heads.token_bytes * sum(lens)))))
        groups.append([_decode_call(context, heads, lens, seed) for seed in range(copies)])
    return groups


def _decode_call(context: Context, heads: Heads, lens: tuple[int, ...], seed: int) -> Call:
    kv = make_kv(context, heads, lens, 16, seed)
    q = context.random(len(lens), heads.queries, heads.dim)
    rules = ScoreRules(heads.dim**-0.5)

    def call() -> torch.Tensor:
        # The plan is timed too, because it depends on the parameters. A step plans once for about thirty layers.
        plan = lmi_kernels.plan_decode(kv.sequences, heads.keys_values, heads.dim, rules.window)
        out = torch.empty_like(q)
        lmi_kernels.decode_attention(q, kv.pool, kv.sequences, plan, rules, out)
        return out

    return call


def _chunks(context: Context, heads: Heads, length: int) -> list[list[Call]]:
    """Return a call with two sequences: a first chunk, and a later chunk after at least as many keys."""
    kv = make_kv(context, heads, (length, 2 * max(length, 1024)), 16)
    q = context.random(2 * length, heads.queries, heads.dim)
    bounds = torch.tensor([0, length, 2 * length], dtype=torch.int32, device=context.device)
    rules = ScoreRules(heads.dim**-0.5)

    def call() -> torch.Tensor:
        out = torch.empty_like(q)
        lmi_kernels.varlen_attention(q, kv.pool, kv.sequences, bounds, length, rules, out)
        return out

    return [[call]]


def _experts(context: Context, rows: int) -> list[list[Call]]:
    """Time both products of Mixtral's experts together, so that a gain in one is not lost in the other."""
    hidden, middle, count = 4096, 14336, 8
    weights = lmi_kernels.pack_experts(
        context.random(count, 2 * middle, hidden, scale=hidden**-0.5),
        context.random(count, hidden, middle, scale=middle**-0.5),
    )
    # Several choices of experts, as in real steps.
    inputs = [(context.random(rows, hidden), context.random(rows, count)) for _ in range(4)]
    return [[lambda x=x, logits=logits: lmi_kernels.experts(x, logits, weights, 2) for x, logits in inputs]]
