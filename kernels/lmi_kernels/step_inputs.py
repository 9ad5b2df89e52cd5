"""Build a step's inputs on the GPU, from tables that stay there and the few numbers that the host sends. On a CPU the
host builds them."""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton

SAMPLED_LAST = -1
"""Value in `token_ids` that stands for the token sampled last for this sequence."""


_BLOCK, _NUM_WARPS = 128, 4


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
    """Compute token ids, positions, slots and sequence lengths of a step.

    Token row i of sequence s = owners[i] is at position p = starts[s] + i - cu_seqlens_q[s] and in slot
    block_tables[rows[s], p // block_size] * block_size + p % block_size.

    Args:
        owners: [num_rows], int32: each token row's sequence; -1: padding.
        cu_seqlens_q: [num_seqs + 1], int32: sequence s has the token rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]).
        starts: [num_seqs], int32: position of the sequence's first token of this step; -1: the sequence is padding, and
            so are its token rows, if it has any.
        rows: [num_seqs], int32: each sequence's row of `last_tokens` and `block_tables`.
        token_ids: [num_rows], int32; SAMPLED_LAST: take last_tokens[rows[s]].
        last_tokens: [table rows], int64.
        block_tables: [table rows, max_blocks], int32, contiguous.
        block_size: tokens per block.

    Returns:
        input_ids: [num_rows], int64; 0 for padding.
        positions: [num_rows], int64; 0 for padding.
        slot_mapping: [num_rows], int64; -1 for padding.
        seq_lens: [num_seqs], int32: tokens of each sequence, including this step's; 0 for padding.

    Raises:
        RuntimeError: the tensors are on a CPU without Triton's interpreter.
    """
    if not uses_triton(owners):
        raise RuntimeError(f"step_inputs runs on a GPU, not on {owners.device}")
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


# Avoid recompilation: lengths change from step to step, and arrays may be unaligned parts of one buffer.
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
    """Compute BLOCK sequences and BLOCK token rows."""
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
