"""A step's inputs, built on the device from tables that stay there and from the few numbers that the host sends. For
GPUs: on a CPU the host builds them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.checks import Inputs, OpCheck, Results

SAMPLED_LAST = -1
"""In `token_ids`: the token that was sampled last for this sequence."""


def step_inputs(
    owners: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    last_tokens: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token row i of sequence s = owners[i] stands at position p = starts[s] + i - cu_seqlens_q[s] and in slot
    block_tables[rows[s], p // block_size] * block_size + p % block_size.

    Args:
        owners: [num_rows], int32: each token row's sequence; -1: padding.
        cu_seqlens_q: [num_seqs + 1], int32: sequence s has the token rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]).
        starts: [num_seqs], int32: position of the sequence's first token of this step; -1: padding, and so are its
            token rows, if it has any.
        rows: [num_seqs], int32: each sequence's row of `last_tokens` and `block_tables`.
        token_ids: [num_rows], int32; SAMPLED_LAST: last_tokens[rows[s]].
        last_tokens: [table rows], int64.
        block_tables: [table rows, max_blocks], int32, contiguous.
        block_size: tokens.

    Returns:
        input_ids: [num_rows], int64; 0 for padding.
        positions: [num_rows], int64; 0 for padding.
        slot_mapping: [num_rows], int64; -1 for padding.
        seq_lens: [num_seqs], int32: tokens of each sequence, this step's included; 0 for padding.

    Raises:
        RuntimeError: the tensors are on a CPU, and not in Triton's interpreter.
    """
    if not uses_triton(owners):
        raise RuntimeError(f"step_inputs runs on a GPU, not on {owners.device}")
    return step_inputs_triton(
        owners, cu_seqlens_q, starts, rows, token_ids, last_tokens, block_tables, block_size
    )


# The host may send its arrays as parts of one buffer, and their lengths change with every step: one kernel for all.
@jit(
    do_not_specialize=("num_rows", "num_seqs", "max_blocks"),
    do_not_specialize_on_alignment=(
        "owners_ptr",
        "cu_seqlens_q_ptr",
        "starts_ptr",
        "rows_ptr",
        "token_ids_ptr",
    ),
)
def _step_inputs_kernel(
    owners_ptr,
    cu_seqlens_q_ptr,
    starts_ptr,
    rows_ptr,
    token_ids_ptr,
    last_tokens_ptr,
    block_tables_ptr,
    input_ids_ptr,
    positions_ptr,
    slot_mapping_ptr,
    seq_lens_ptr,
    num_rows,
    num_seqs,
    max_blocks,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK sequences and BLOCK token rows a program."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)

    is_seq = i < num_seqs
    start = tl.load(starts_ptr + i, mask=is_seq, other=-1)
    first_row = tl.load(cu_seqlens_q_ptr + i, mask=is_seq, other=0)
    next_row = tl.load(cu_seqlens_q_ptr + i + 1, mask=is_seq, other=0)
    tl.store(seq_lens_ptr + i, tl.where(start >= 0, start + next_row - first_row, 0), mask=is_seq)

    is_row = i < num_rows
    seq = tl.load(owners_ptr + i, mask=is_row, other=-1)
    start = tl.load(starts_ptr + seq, mask=seq >= 0, other=-1)
    real = start >= 0
    first_row = tl.load(cu_seqlens_q_ptr + seq, mask=real, other=0)
    position = tl.where(real, start + i - first_row, 0)
    table_row = tl.load(rows_ptr + seq, mask=real, other=0).to(tl.int64)
    token = tl.load(token_ids_ptr + i, mask=real, other=0).to(tl.int64)
    is_sampled = real & (token == -1)
    sampled = tl.load(last_tokens_ptr + table_row, mask=is_sampled, other=0)
    places = table_row * max_blocks + position // BLOCK_SIZE
    block = tl.load(block_tables_ptr + places, mask=real, other=0).to(tl.int64)
    slot = block * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(input_ids_ptr + i, tl.where(is_sampled, sampled, token), mask=is_row)
    tl.store(positions_ptr + i, position.to(tl.int64), mask=is_row)
    tl.store(slot_mapping_ptr + i, tl.where(real, slot, -1), mask=is_row)


_BLOCK, _NUM_WARPS = 128, 4


def step_inputs_triton(
    owners: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    last_tokens: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `step_inputs`."""
    num_rows, num_seqs, device = owners.shape[0], starts.shape[0], owners.device
    input_ids, positions, slot_mapping = (
        torch.empty(num_rows, dtype=torch.int64, device=device) for _ in range(3)
    )
    seq_lens = torch.empty(num_seqs, dtype=torch.int32, device=device)
    _step_inputs_kernel[(cdiv(max(num_rows, num_seqs), _BLOCK),)](
        owners,
        cu_seqlens_q,
        starts,
        rows,
        token_ids,
        last_tokens,
        block_tables,
        input_ids,
        positions,
        slot_mapping,
        seq_lens,
        num_rows,
        num_seqs,
        block_tables.shape[1],
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )
    return input_ids, positions, slot_mapping, seq_lens


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
    """Row by row."""
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
        # Block numbers that take slots beyond 32 bits.
        ([1, 9], 1, 1, 64),
    ):
        yield _example(generator, query_lens, start_padding, row_padding, block_size)


def _example(
    generator: torch.Generator, query_lens: list[int], start_padding: int, row_padding: int, block_size: int
) -> Inputs:
    """Sequences with these queries, padding sequences (the first has a token row), padding rows."""
    num_seqs = len(query_lens)
    lens = torch.tensor([*query_lens, *([1] if start_padding else []), *[0] * (start_padding - 1)])
    owners = torch.repeat_interleave(torch.arange(len(lens)), lens)
    num_rows = len(owners) + row_padding
    table_rows = num_seqs + 3
    starts = torch.randint(0, 3 * block_size, (len(lens),), generator=generator)
    starts[num_seqs:] = -1
    max_blocks = (int(starts.max()) + max(query_lens)) // block_size + 2
    rows = torch.randperm(table_rows, generator=generator)[:num_seqs]
    # Any number may stand where nothing is read.
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


CHECKS = (
    OpCheck("step_inputs", step_inputs_triton, step_inputs_reference, _examples, _production, {}, exact=True),
)
