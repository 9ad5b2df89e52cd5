"""Paged keys and values for measurements and checks: shuffled pages, random content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lmi_kernels import PagedSequences
from tests.gpu.context import Context


@dataclass(frozen=True, slots=True)
class Heads:
    queries: int
    keys_values: int
    dim: int

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in one layer, in 16 bits."""
        return 4 * self.keys_values * self.dim


LLAMA = Heads(32, 8, 128)
FALCON_40B = Heads(128, 8, 64)


@dataclass(frozen=True, slots=True)
class PagedKv:
    pool: torch.Tensor
    """[2, kv heads, blocks, block size, head dim]."""
    sequences: PagedSequences


def make_kv(
    context: Context, heads: Heads, seq_lens: Sequence[int], block_size: int, seed: int = 0
) -> PagedKv:
    """Make sequences of these lengths. Each has its own pages, scattered over the pool."""
    device = context.device
    counts = [-(-length // block_size) for length in seq_lens]
    pages = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)).int()
    table = torch.zeros(len(seq_lens), max(counts), dtype=torch.int32)
    for row, own in zip(table, pages.split(counts), strict=True):
        row[: len(own)] = own
    numbers = torch.arange(len(seq_lens), dtype=torch.int32, device=device)
    lens = torch.tensor(list(seq_lens), dtype=torch.int32, device=device)
    pool = context.random(2, heads.keys_values, len(pages), block_size, heads.dim)
    return PagedKv(pool, PagedSequences(table.to(device), numbers, lens))


def keys_values(kv: PagedKv, sequence: int) -> torch.Tensor:
    """Gather the keys and values of one sequence -> [2, kv heads, keys, head dim], fp64."""
    seq_len = int(kv.sequences.seq_lens[sequence])
    two, heads, _, block_size, dim = kv.pool.shape
    table = kv.sequences.block_tables[int(kv.sequences.table_rows[sequence])].long()
    own = kv.pool[:, :, table[: -(-seq_len // block_size)]]
    return own.reshape(two, heads, -1, dim)[:, :, :seq_len].double()


def dense_attention(q: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Compute attention of one sequence's last tokens in fp64.

    Args:
        q: [num_tokens, num_heads, head_dim].
        own: [2, kv heads, keys, head dim], fp64.

    Returns: the shape of q, fp64.
    """
    num_tokens, num_heads, dim = q.shape
    _, kv_heads, num_keys, _ = own.shape
    share = num_heads // kv_heads
    last = torch.arange(num_keys - num_tokens, num_keys, device=q.device)
    hidden = torch.arange(num_keys, device=q.device)[None] > last[:, None]
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for head in range(num_heads):
        keys, values = own[0, head // share], own[1, head // share]
        scores = (q[:, head].double() @ keys.T) * dim**-0.5
        out[:, head] = torch.softmax(scores.masked_fill_(hidden, -torch.inf), dim=-1) @ values
    return out


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ||result - expected|| / ||expected||. NaN counts as infinite."""
    error = float((result.double() - expected).norm() / expected.norm())
    return error if error == error else float("inf")
