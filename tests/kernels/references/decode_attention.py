"""Reference for `decode_attention` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmi_kernels.attention.decode import decode_attention
from lmi_kernels.attention.decode_plan import plan_decode
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules
from tests.kernels.references.attention_reference import attention_reference, example_cache, example_rules
from tests.kernels.references.check import Inputs, OpCheck, Results


def _launch(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: PagedSequences,
    rules: ScoreRules,
    num_programs: int | None,
) -> Results:
    """Plan and run decode attention."""
    plan = plan_decode(sequences, pool.shape[1], pool.shape[4], rules.window, num_programs)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_attention(q, pool, sequences, plan, rules, out)
    return (out,)


def _reference(q: torch.Tensor, num_programs: int | None, **batch: Any) -> Results:
    one_query_each = torch.arange(len(q) + 1, dtype=torch.int32)
    return (attention_reference(q, cu_seqlens_q=one_query_each, **batch),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    def lengths(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    def example(
        lens: list[int],
        kv_heads: int,
        share: int,
        head_dim: int,
        block_size: int,
        *,
        window: int | None = None,
        num_programs: int | None = None,
        **rules: Any,
    ) -> Inputs:
        pairs = [(length, min(length, 1)) for length in lens]
        pool, sequences = example_cache(generator, dtype, pairs, kv_heads, head_dim, block_size, window)
        heads = kv_heads * share
        # Queries are the first heads of wider rows, as in a fused projection. The other heads may hold anything.
        wide = torch.full((len(lens), heads + 2, head_dim), torch.nan, dtype=dtype)
        wide[:, :heads] = torch.randn(len(lens), heads, head_dim, generator=generator).to(dtype)
        return {
            "q": wide[:, :heads],
            "pool": pool,
            "sequences": sequences,
            "rules": example_rules(head_dim**-0.5, heads, generator, window=window, **rules),
            "num_programs": num_programs,
        }

    # Rules.
    yield example([301, 0, 33], 2, 2, 64, 16, alibi=True, num_programs=3)
    yield example([450, 70, 9], 1, 4, 64, 16, window=200, num_programs=2)
    yield example([450, 70, 0], 1, 2, 128, 256, window=131, softcap=5.0, num_programs=3)
    yield example([301, 33], 1, 2, 64, 16, softcap=3.0, num_programs=2)
    yield example([401, 0, 33], 2, 3, 64, 16, sinks=True, num_programs=3)
    yield example([450, 70], 1, 4, 64, 16, window=300, sinks=True, num_programs=4)
    # One long sequence, split into more parts than are combined at a time.
    yield example([1200 + int(torch.randint(0, 99, (), generator=generator))], 1, 2, 128, 16, num_programs=19)
    # Many short sequences, several per program; short sequences next to one that is split.
    yield example(lengths(1, 40, 11), 2, 3, 64, 16, num_programs=2)
    yield example([*lengths(1, 40, 4), 500, *lengths(1, 40, 3)], 1, 1, 128, 16, num_programs=3)
    # Padding at the start, in the middle and at the end; only padding; more programs than tiles.
    yield example([0, 130, 0, 0, 257, 1, 0], 1, 4, 128, 4, num_programs=3)
    yield example([0, 0, 0], 1, 2, 64, 16)
    yield example([3, 0, 300], 1, 16, 80, 16, num_programs=5)
    # More heads than one product takes, not a power of 2; pages larger than tiles; pages that do not divide a tile.
    yield example([70, 100], 1, 71, 64, 16, num_programs=1)
    yield example([260, 397, 64], 1, 4, 128, 256, num_programs=3)
    yield example(lengths(70, 200, 2), 1, 2, 64, 24, num_programs=2)
    # Other head dims.
    yield example(lengths(70, 200, 2), 2, 1, 96, 16, num_programs=2)
    yield example(lengths(50, 200, 2), 1, 2, 256, 4, num_programs=2)


_MODELS = ((32, 8, 128, 16), (32, 8, 128, 64), (128, 8, 64, 16), (71, 1, 64, 16), (9, 3, 64, 16))
"""(query heads, KV heads, head dim, block size) of Llama 3 8B twice, Falcon 40B, Falcon 7B, SmolLM2. Qwen3 0.6B (16
query heads, 8 KV heads) differs from Llama only in two numbers."""


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    def inputs(heads: int, kv_heads: int, head_dim: int, block_size: int, **rules: Any) -> Inputs:
        numbers = torch.empty(256, 512, dtype=torch.int32, device="meta")
        return {
            "q": torch.empty(32, heads, head_dim, dtype=dtype, device="meta"),
            "pool": torch.empty(2, kv_heads, 40_000, block_size, head_dim, dtype=dtype, device="meta"),
            "sequences": PagedSequences(numbers, numbers[0, :32], numbers[0, :32]),
            "rules": example_rules(head_dim**-0.5, heads, None, **rules),
            "num_programs": None,
        }

    for model in _MODELS:
        yield inputs(*model)
    if dtype != torch.bfloat16:
        return
    # Compiled in one dtype only: GPT-NeoX 20B, the first Mistral, Gemma 2, a small Falcon (ALiBi), gpt-oss.
    yield inputs(64, 64, 96, 16)
    yield inputs(32, 8, 128, 16, window=4096)
    yield inputs(16, 8, 256, 16, softcap=50.0)
    yield inputs(64, 64, 64, 16, alibi=True)
    yield inputs(64, 8, 64, 16, window=128, sinks=True)


CHECKS = (OpCheck("decode_attention", _launch, _reference, _examples, _production),)
