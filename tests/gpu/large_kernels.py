"""Compare kernels at production sizes with fp64 on the same device: long contexts, page offsets beyond 32 bits,
Mixtral's experts, vocabularies. Each comparison returns the relative error and the allowed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.utils._pytree import tree_map

import lmi_kernels
from lmi_kernels import PagedSequences, ScoreRules
from lmi_kernels.sampling.choose_tokens import choose_tokens
from tests.gpu.context import Context
from tests.gpu.kv import LLAMA, Heads, PagedKv, dense_attention, keys_values, make_kv, relative_error
from tests.kernels.references.choose_tokens import choose_tokens_reference
from tests.kernels.references.penalties import example_penalties

_ALLOWED = 1e-2
"""Allowed error with 16-bit operands and sums in fp32: a few roundings of 2^-9."""


def decode(context: Context) -> tuple[float, float]:
    """Decode attention of long and short sequences, split over programs."""
    lens = context.size((40_000, 1, 17, 20_001, 4096), (40, 1))
    heads = context.size(LLAMA, Heads(4, 1, 32))
    kv = make_kv(context, heads, lens, 16)
    q = context.random(len(lens), heads.queries, heads.dim)
    return decode_error(q, kv, range(len(lens))), _ALLOWED


def prefill(context: Context) -> tuple[float, float]:
    """Prefill attention of a first chunk and of a later chunk."""
    return _chunks(context, context.size(LLAMA, Heads(4, 1, 32)), *context.size((5000, 3001), (20, 21)))


def prefill_narrow(context: Context) -> tuple[float, float]:
    """Prefill attention with Falcon-40B's heads: 16 query heads per KV head."""
    heads = context.size(Heads(32, 2, 64), Heads(16, 1, 64))
    return _chunks(context, heads, *context.size((1000, 1025), (9, 7)))


def huge_pool(context: Context) -> tuple[float, float]:
    """Pages with offsets beyond 32 bits: written by `rope_and_store`, read by all attention kernels."""
    heads, block_size = Heads(4, 1, 128), 16
    first_far = 2**31 // (block_size * heads.dim)
    num_blocks = first_far + 64
    # On a CPU only memory that is written is allocated, and nearly all of the pool is not written.
    pool = torch.empty(
        2, 1, num_blocks, block_size, heads.dim, dtype=context.dtype(torch.bfloat16), device=context.device
    )
    far = torch.randperm(64, generator=torch.Generator().manual_seed(0)) + first_far
    length = context.size(150, 40)
    table = far[: -(-length // block_size)].int().to(context.device)[None]
    tokens = torch.arange(length, device=context.device)
    slots = table[0].long()[tokens // block_size] * block_size + tokens % block_size
    qkv = context.random(length, (heads.queries + 2) * heads.dim)
    q = lmi_kernels.rope_and_store(qkv, None, tokens, slots, pool, heads.queries)
    rows = torch.zeros(1, dtype=torch.int32, device=context.device)
    lens = torch.full((1,), length, dtype=torch.int32, device=context.device)
    kv = PagedKv(pool, PagedSequences(table, rows, lens))
    stored = qkv.view(length, -1, heads.dim)[:, heads.queries :].permute(1, 0, 2)[:, None].double()
    errors = [relative_error(keys_values(kv, 0), stored)]
    bounds = torch.tensor([0, length], dtype=torch.int32, device=context.device)
    expected = dense_attention(q, stored)
    rules = ScoreRules(heads.dim**-0.5)
    out = torch.full_like(q, torch.nan)
    lmi_kernels.varlen_attention(q, pool, kv.sequences, bounds, length, rules, out)
    errors.append(relative_error(out, expected))
    errors.append(relative_error(decode_once(q[-1:], kv), expected[-1:]))
    return max(errors), _ALLOWED


def experts(context: Context) -> tuple[float, float]:
    """Mixtral-8x7B's experts in decode steps and a prefill chunk."""
    hidden, middle, count = context.size((4096, 14336, 8), (32, 48, 3))
    gate_up = context.random(count, 2 * middle, hidden, scale=hidden**-0.5)
    down = context.random(count, hidden, middle, scale=middle**-0.5)
    weights = lmi_kernels.pack_experts(gate_up, down)
    worst = 0.0
    for rows in context.size((1, 32, 2048), (5,)):
        x, logits = context.random(rows, hidden), context.random(rows, count)
        result = lmi_kernels.experts(x, logits, weights, 2)
        worst = max(worst, relative_error(result, _experts(x, logits, gate_up, down)))
    return worst, 2 * _ALLOWED


def choices(context: Context) -> tuple[float, float]:
    """Greedy and sampled tokens with Llama-3's vocabulary. The error is the share of tokens that differ."""
    rows, vocab = context.size((64, 128_256), (4, 300))
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(rows, vocab, generator=generator)).to(context.dtype(torch.bfloat16))
    inputs = (
        logits,
        (torch.arange(rows) % 2).float(),
        torch.full((rows,), -torch.inf),
        torch.full((rows,), vocab, dtype=torch.int32),
        torch.arange(rows) * 7919,
        torch.arange(rows) + 1000,
        example_penalties(generator, rows, vocab),
    )
    tokens, finite = choose_tokens(*tree_map(lambda each: each.to(context.device), inputs))
    expected = choose_tokens_reference(*inputs)[0]
    differing = int((tokens.cpu() != expected).sum()) + int((~finite.cpu()).sum())
    return differing / rows, 0.0


def decode_once(q: torch.Tensor, kv: PagedKv) -> torch.Tensor:
    """Plan and run decode attention. q: [num_seqs, num_heads, head_dim]."""
    rules = ScoreRules(q.shape[-1] ** -0.5)
    plan = lmi_kernels.plan_decode(kv.sequences, kv.pool.shape[1], kv.pool.shape[4], rules.window)
    out = torch.full_like(q, torch.nan)
    lmi_kernels.decode_attention(q, kv.pool, kv.sequences, plan, rules, out)
    return out


def decode_error(q: torch.Tensor, kv: PagedKv, sequences: Iterable[int]) -> float:
    """Return the largest relative error of decode attention in these sequences."""
    out = decode_once(q, kv)
    return max(
        relative_error(out[i : i + 1], dense_attention(q[i : i + 1], keys_values(kv, i))) for i in sequences
    )


def _chunks(context: Context, heads: Heads, past: int, chunk: int) -> tuple[float, float]:
    kv = make_kv(context, heads, (chunk, past + chunk), 16)
    bounds = torch.tensor([0, chunk, 2 * chunk], dtype=torch.int32, device=context.device)
    q = context.random(2 * chunk, heads.queries, heads.dim)
    out = torch.full_like(q, torch.nan)
    rules = ScoreRules(heads.dim**-0.5)
    lmi_kernels.varlen_attention(q, kv.pool, kv.sequences, bounds, chunk, rules, out)
    errors = [
        relative_error(found, dense_attention(queries, keys_values(kv, i)))
        for i, (found, queries) in enumerate(zip(out.split(chunk), q.split(chunk), strict=True))
    ]
    return max(errors), _ALLOWED


def _experts(
    x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute in fp64, one expert after the other."""
    # Stable: of equal logits, which are common in bf16, the first wins.
    chosen = logits.double().sort(dim=-1, descending=True, stable=True).indices[:, :2]
    shares = torch.softmax(logits.double().gather(1, chosen), dim=-1)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in range(len(gate_up)):
        rows, rank = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (x[rows].double() @ gate_up[expert].double().T).chunk(2, dim=-1)
        parts = (torch.nn.functional.silu(gate) * up) @ down[expert].double().T
        out.index_add_(0, rows, parts * shares[rows, rank][:, None])
    return out


COMPARISONS: dict[str, Callable[[Context], tuple[float, float]]] = {
    "decode attention, up to 40,000 keys": decode,
    "prefill attention, a chunk of 3,001 tokens after 5,000": prefill,
    "prefill attention, 16 query heads per KV head, head dim 64": prefill_narrow,
    "page offsets beyond 32 bits": huge_pool,
    "experts of Mixtral-8x7B": experts,
    "token sampling, vocabulary of 128,256": choices,
}
