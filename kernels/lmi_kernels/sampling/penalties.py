"""Make tokens less likely that stand in the sequence: repetition (Keskar et al. 2019, arXiv:1909.05858), and OpenAI's
presence and frequency penalties.

What stands where is a table that stays on the device, an entry for each token of the vocabulary in each row: bit 0 says
that the token stands in the prompt, the bits above how often it stands in the output. `count_tokens_` keeps it up.
"""

from __future__ import annotations

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.sampling.random_numbers import EXACT
from tests.kernels.references.check import Results

_BLOCK = 2048
_PROGRAMS_PER_MULTIPROCESSOR = 4


def penalize(
    logits: torch.Tensor,
    table_rows: torch.Tensor,
    counts: torch.Tensor,
    penalizes: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Of tokens of the sequence logit / r where positive, logit * r where negative; then of those that stand in the
    output - p - f * count.

    Args:
        logits: [num_rows, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed.
        table_rows: [num_rows], int64: each one's row of `counts`.
        counts: [any, vocab_size], int16, contiguous: the table.
        penalizes: [num_rows], any integer dtype: 0 in the rows that do not ask.
        repetition, presence, frequency: [num_rows], any float dtype; 1, 0 and 0 change nothing.

    Returns: [num_rows, vocab_size], fp32: in 16 bits small penalties of large logits would vanish. Nothing is written
        to rows that do not ask.
    """
    call = penalize_triton if uses_triton(logits) else penalize_reference
    (penalized,) = call(logits, table_rows, counts, penalizes, repetition, presence, frequency)
    return penalized


# One variant for all batch sizes: these are read one number at a time, or only count.
@jit(
    do_not_specialize=["blocks_per_split"],
    do_not_specialize_on_alignment=[
        "table_row_ptr",
        "penalizes_ptr",
        "repetition_ptr",
        "presence_ptr",
        "frequency_ptr",
    ],
)
def _penalize_kernel(
    logits_ptr,
    row_stride,
    vocab,
    table_row_ptr,
    count_ptr,
    penalizes_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    penalized_ptr,
    blocks_per_split,
    BLOCK: tl.constexpr,
):
    """One split of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(penalizes_ptr + row) == 0:
        return
    row_ptr = logits_ptr + row * row_stride
    count_ptr += tl.load(table_row_ptr + row) * vocab
    penalized_ptr += row * vocab
    repetition = tl.load(repetition_ptr + row).to(tl.float32)
    presence = tl.load(presence_ptr + row).to(tl.float32)
    frequency = tl.load(frequency_ptr + row).to(tl.float32)
    first = tl.program_id(1) * blocks_per_split * BLOCK
    last = tl.minimum(first + blocks_per_split * BLOCK, vocab)
    for start in range(first, last, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        inside = tokens < vocab
        x = tl.load(row_ptr + tokens, mask=inside, other=0.0).to(tl.float32)
        entry = tl.load(count_ptr + tokens, mask=inside, other=0).to(tl.int32)
        x = tl.where(entry == 0, x, tl.where(x < 0.0, x * repetition, tl.div_rn(x, repetition)))
        count = entry >> 1
        x -= tl.where(count > 0, presence, 0.0)
        x -= frequency * count.to(tl.float32)
        tl.store(penalized_ptr + tokens, x, mask=inside)


def penalize_triton(
    logits: torch.Tensor,
    table_rows: torch.Tensor,
    counts: torch.Tensor,
    penalizes: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> Results:
    """As `penalize`; returns one tensor."""
    rows, vocab = logits.shape
    penalized = torch.empty(rows, vocab, dtype=torch.float32, device=logits.device)
    blocks = cdiv(vocab, _BLOCK)
    programs = _PROGRAMS_PER_MULTIPROCESSOR * tuning.num_multiprocessors(logits.device)
    blocks_per_split = cdiv(blocks, min(blocks, cdiv(programs, rows)))
    _penalize_kernel[(rows, cdiv(blocks, blocks_per_split))](
        logits,
        logits.stride(0),
        vocab,
        table_rows,
        counts,
        penalizes,
        repetition,
        presence,
        frequency,
        penalized,
        blocks_per_split,
        BLOCK=_BLOCK,
        num_warps=8,
        # As the host's steps do it: equal sequences get equal logits, wherever they are sampled.
        **EXACT,
    )
    return (penalized,)


def penalize_reference(
    logits: torch.Tensor,
    table_rows: torch.Tensor,
    counts: torch.Tensor,
    penalizes: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> Results:
    """fp64, rounded to fp32; 0 in the rows that do not ask."""
    x = logits.double()
    entries = counts[table_rows]
    factor, presence, frequency = (each.double()[:, None] for each in (repetition, presence, frequency))
    x = torch.where(entries != 0, torch.where(x < 0, x * factor, x / factor), x)
    often = entries >> 1
    x = x - presence * (often > 0) - frequency * often
    return (x.where(penalizes[:, None] != 0, 0.0).float(),)
