"""Reference for `step_inputs` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.step_inputs import SAMPLED_LAST, step_inputs
from tests.kernels.references.check import Inputs, OpCheck, Results


def step_inputs_reference(
    owners: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    last_tokens: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
) -> Results:
    bounds, begins, table_rows = cu_seqlens_q.tolist(), starts.tolist(), rows.tolist()
    table = []
    for i, (seq, token) in enumerate(zip(owners.tolist(), token_ids.tolist(), strict=True)):
        if seq < 0 or begins[seq] < 0:
            table.append((0, 0, -1))
            continue
        position = begins[seq] + i - bounds[seq]
        block = int(block_tables[table_rows[seq], position // block_size])
        token_id = int(last_tokens[table_rows[seq]]) if token == SAMPLED_LAST else token
        table.append((token_id, position, block * block_size + position % block_size))
    lens = [begin + bounds[i + 1] - bounds[i] if begin >= 0 else 0 for i, begin in enumerate(begins)]
    input_ids, positions, slots = torch.tensor(table, dtype=torch.int64).view(-1, 3).unbind(1)
    return input_ids, positions, slots, torch.tensor(lens, dtype=torch.int32)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for query_lens, start_padding, row_padding, block_size in (
        ([1], 0, 0, 16),
        ([1, 1, 1], 2, 2, 4),
        ([3, 1, 150, 7], 0, 5, 16),
        ([2, 5], 200, 0, 1),
        # Block numbers with slots beyond 32 bits.
        ([1, 9], 1, 1, 64),
    ):
        yield _example(generator, query_lens, start_padding, row_padding, block_size)


def _example(
    generator: torch.Generator, query_lens: list[int], start_padding: int, row_padding: int, block_size: int
) -> Inputs:
    """Make sequences of these lengths, padding sequences (the first has a token row), and padding rows."""
    num_seqs = len(query_lens)
    lens = torch.tensor([*query_lens, *([1] if start_padding else []), *[0] * (start_padding - 1)])
    owners = torch.repeat_interleave(torch.arange(len(lens)), lens)
    num_rows = len(owners) + row_padding
    table_rows = num_seqs + 3
    starts = torch.randint(0, 3 * block_size, (len(lens),), generator=generator)
    starts[num_seqs:] = -1
    max_blocks = (int(starts.max()) + max(query_lens)) // block_size + 2
    rows = torch.randperm(table_rows, generator=generator)[:num_seqs]
    # Entries that are not read may hold anything.
    rows = torch.cat((rows, torch.full((start_padding,), 2**30)))
    token_ids = torch.randint(0, 1000, (num_rows,), generator=generator)
    token_ids[torch.rand(num_rows, generator=generator) < 0.5] = SAMPLED_LAST
    num_blocks = 2**27 if block_size == 64 else 10 * table_rows
    return {
        "owners": torch.cat((owners, torch.full((row_padding,), -1))).int(),
        "cu_seqlens_q": torch.cat((torch.zeros(1), lens.cumsum(0))).int(),
        "starts": starts.int(),
        "rows": rows.int(),
        "token_ids": token_ids.int(),
        "last_tokens": torch.randint(0, 1000, (table_rows,), generator=generator),
        "block_tables": torch.randint(0, num_blocks, (table_rows, max_blocks), generator=generator).int(),
        "block_size": block_size,
    }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    def numbers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    for block_size in (16, 64):
        yield {
            "owners": numbers(256),
            "cu_seqlens_q": numbers(257),
            "starts": numbers(256),
            "rows": numbers(256),
            "token_ids": numbers(256),
            "last_tokens": numbers(256, dtype=torch.int64),
            "block_tables": numbers(256, 512),
            "block_size": block_size,
        }


CHECKS = (OpCheck("step_inputs", step_inputs, step_inputs_reference, _examples, _production, exact=True),)
