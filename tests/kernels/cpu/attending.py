"""Sequences with cached keys and values, and native attention for chunks of their queries."""

from __future__ import annotations

import ctypes
from collections import abc
from dataclasses import dataclass

import torch

from lmi_kernels import ScoreRules
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Attention, Sequence, Step, Storage, score_fields
from lmi_kernels.cpu.team import Program, Team
from tests.kernels.cpu.kv_cache import KvCache
from tests.kernels.references.attention_reference import dense_attention


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int


@dataclass(frozen=True)
class Chunk:
    """Queries [start, stop) of one sequence."""

    sequence: int
    start: int
    stop: int


class Sequences:
    """Random queries, keys and values of several sequences, in shuffled blocks."""

    def __init__(
        self, storage: Storage, shape: Shape, lengths: abc.Sequence[int], seed: int, spread: float = 1.0
    ) -> None:
        """spread: standard deviation of the queries. Large values make the softmax sharp."""
        generator = torch.Generator().manual_seed(seed)
        self.storage, self.shape, self.lengths = storage, shape, lengths
        needed = [-(-length // shape.block_size) for length in lengths]
        order = torch.randperm(sum(needed) + 1, generator=generator)[1:].int()
        self.blocks = order.split(needed)
        self.q = [
            torch.randn(length, shape.num_heads, shape.head_dim, generator=generator) * spread
            for length in lengths
        ]
        self.kv = [
            torch.randn(2, length, shape.num_kv_heads, shape.head_dim, generator=generator)
            for length in lengths
        ]
        self.num_blocks = sum(needed) + 1
        self.plain = ScoreRules(shape.head_dim**-0.5)

    def slots(self, chunk: Chunk) -> torch.Tensor:
        positions = torch.arange(chunk.stop)
        blocks = self.blocks[chunk.sequence][positions // self.shape.block_size].long()
        return blocks * self.shape.block_size + positions % self.shape.block_size

    def cache(self, chunks: abc.Sequence[Chunk]) -> KvCache:
        """Make the cache as it is when these are the latest chunks of their sequences."""
        shape = self.shape
        cache = KvCache(self.storage, self.num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        slots = torch.cat([self.slots(chunk) for chunk in chunks])
        kv = torch.cat([self.kv[chunk.sequence][:, : chunk.stop] for chunk in chunks], dim=1)
        cache.write(slots, kv[0], kv[1])
        return cache

    def attend(
        self,
        library: Library,
        team: Team,
        chunks: abc.Sequence[Chunk],
        split: bool = True,
        rules: ScoreRules | None = None,
    ) -> list[torch.Tensor]:
        """Compute the attention of all chunks in one step.

        Unused rows separate the chunks. Blocks before a window are replaced with block 0, which holds NaN.

        Args:
            split: False: only the scratch memory that each worker needs for itself, so that no sequence is split.

        Returns: for each chunk [tokens, num_heads, head_dim].
        """
        shape, rules, gap = self.shape, rules or self.plain, 2
        cache = self.cache(chunks)
        width = shape.num_heads * shape.head_dim
        num_rows = sum(chunk.stop - chunk.start + gap for chunk in chunks)
        q = torch.full((num_rows, width + 5), torch.nan)
        y = torch.full((num_rows, width + 1), torch.nan)
        sequences, tables, rows, row = [], [], [], 0
        for chunk in chunks:
            length = chunk.stop - chunk.start
            rows.append(slice(row, row + length))
            q[rows[-1], :width] = self.q[chunk.sequence][chunk.start : chunk.stop].flatten(1)
            tables.append(self.blocks[chunk.sequence].clone())
            if rules.window:
                tables[-1][: max(0, chunk.start - rules.window + 1) // shape.block_size] = 0
            blocks = tables[-1].data_ptr()
            sequences.append(Sequence(first_row=row, query_len=length, kv_len=chunk.stop, blocks=blocks))
            row += length + gap
        size = library.attention_scratch_bytes(
            team.num_threads, shape.num_heads, shape.num_kv_heads, shape.head_dim
        )
        if not split:
            size -= team.num_threads * 2048 * (-(-shape.head_dim // 16) * 16 + 2) * 4
        scratch = torch.full((size // 4,), torch.nan)
        op = Attention(
            q=q.data_ptr(),
            y=y.data_ptr(),
            q_stride=q.stride(0),
            y_stride=y.stride(0),
            cache=ctypes.addressof(cache.layer),
            num_heads=shape.num_heads,
            **score_fields(rules),
            scratch=scratch.data_ptr(),
            scratch_bytes=size,
        )
        table = (Sequence * len(sequences))(*sequences)
        step = Step(num_rows=num_rows, sequences=ctypes.addressof(table), num_sequences=len(sequences))
        team.run(Program([op]), step)
        written = torch.zeros(num_rows, dtype=torch.bool)
        for part in rows:
            written[part] = True
        assert y[~written].isnan().all()
        assert y[:, width:].isnan().all()
        return [y[part, :width].reshape(-1, shape.num_heads, shape.head_dim) for part in rows]

    def expected(self, chunk: Chunk, rules: ScoreRules | None = None) -> torch.Tensor:
        """Compute the attention of a chunk in fp64 from the cache: [tokens, num_heads, head_dim]."""
        keys_values = self.cache([chunk]).read()[:, self.slots(chunk)].transpose(1, 2)
        q = self.q[chunk.sequence][chunk.start : chunk.stop]
        return dense_attention(q, keys_values, rules or self.plain)
