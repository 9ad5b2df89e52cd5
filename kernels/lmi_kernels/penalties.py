"""Make tokens less likely that stand in the sequence: repetition (Keskar et al. 2019, arXiv:1909.05858), and OpenAI's
presence and frequency penalties. Work and memory go by the tokens that stand there, not by the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results

_BLOCK = 256


def penalize_(
    logits: torch.Tensor,
    row_of: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """For each listed token: logit / r where positive, logit * r where negative; and where it stands in the output,
    - p - f * count. In fp32, rounded once to the logits' dtype.

    Args:
        logits: [num_rows, vocab_size], fp16, bf16 or fp32, rows contiguous, changed in place.
        row_of: [num_pairs], int32: whose token it is; below 0: padding, nothing happens.
        token_ids: [num_pairs], int32: tokens of prompt and output, each once a row; what is no id of the vocabulary is
            passed over.
        counts: [num_pairs], int32: how often it stands in the output; 0: only in the prompt.
        repetition, presence, frequency: [num_rows], any float dtype; 1, 0 and 0 change nothing.
    """
    call = penalize_triton if uses_triton(logits) else _penalize_torch
    call(logits, row_of, token_ids, counts, repetition, presence, frequency)


@jit
def _penalize_kernel(
    logits_ptr,
    row_stride,
    vocab,
    num_pairs,
    row_of_ptr,
    token_id_ptr,
    count_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    BLOCK: tl.constexpr,
):
    """A block of pairs a program."""
    pairs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pairs < num_pairs
    rows = tl.load(row_of_ptr + pairs, mask=inside, other=-1).to(tl.int64)
    tokens = tl.load(token_id_ptr + pairs, mask=inside, other=-1)
    counts = tl.load(count_ptr + pairs, mask=inside, other=0)
    inside = (rows >= 0) & (tokens >= 0) & (tokens < vocab)
    repetition = tl.load(repetition_ptr + rows, mask=inside, other=1.0).to(tl.float32)
    presence = tl.load(presence_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    frequency = tl.load(frequency_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    places = logits_ptr + rows * row_stride + tokens
    x = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(x < 0, x * repetition, x / repetition)
    x -= tl.where(counts > 0, presence + frequency * counts.to(tl.float32), 0.0)
    tl.store(places, x.to(logits_ptr.dtype.element_ty), mask=inside)


def penalize_triton(
    logits: torch.Tensor,
    row_of: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> Results:
    """As `penalize_`; returns the logits."""
    num_pairs = len(row_of)
    if num_pairs:
        _penalize_kernel[(cdiv(num_pairs, _BLOCK),)](
            logits,
            logits.stride(0),
            logits.shape[1],
            num_pairs,
            row_of,
            token_ids,
            counts,
            repetition,
            presence,
            frequency,
            BLOCK=_BLOCK,
        )
    return (logits,)


def penalize_reference(
    logits: torch.Tensor,
    row_of: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> Results:
    """fp64, rounded to the logits' dtype."""
    inside = (row_of >= 0) & (token_ids >= 0) & (token_ids < logits.shape[1])
    rows, tokens, counts = row_of[inside].long(), token_ids[inside].long(), counts[inside].double()
    wide = logits.double()
    x = wide[rows, tokens]
    x = torch.where(x < 0, x * repetition.double()[rows], x / repetition.double()[rows])
    amounts = presence.double()[rows] + frequency.double()[rows] * counts
    wide[rows, tokens] = x - amounts.where(counts > 0, 0.0)
    return (wide.to(logits.dtype),)


def _check_triton(padded: torch.Tensor, vocab: int, **pairs_and_penalties: torch.Tensor) -> Results:
    """All that is in memory, what stands beyond the vocabulary included."""
    penalize_triton(padded[:, :vocab], **pairs_and_penalties)
    return (padded,)


def _check_reference(padded: torch.Tensor, vocab: int, **pairs_and_penalties: torch.Tensor) -> Results:
    (logits,) = penalize_reference(padded[:, :vocab], **pairs_and_penalties)
    return (torch.cat([logits, padded[:, vocab:]], dim=1),)


def _penalize_torch(logits: torch.Tensor, *pairs_and_penalties: torch.Tensor) -> Results:
    logits.copy_(penalize_reference(logits, *pairs_and_penalties)[0])
    return (logits,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, vocab, spare, listed in ((1, 1, 0, 1), (3, 97, 3, 40), (4, 5000, 8, 300)):
        logits = torch.randn(rows, vocab + spare, generator=generator).mul_(3.0).to(dtype)
        logits[:, ::7] = -torch.inf
        token_ids = torch.stack([torch.randperm(vocab, generator=generator)[:listed] for _ in range(rows)])
        row_of = torch.arange(rows).repeat_interleave(listed)
        row_of[torch.rand(len(row_of), generator=generator) < 0.1] = -1
        token_ids = token_ids.flatten()
        if listed > 1:
            # No ids of the vocabulary, on both sides.
            token_ids[3], token_ids[5] = vocab, -1
        yield {
            "padded": logits,
            "vocab": vocab,
            "row_of": row_of.int(),
            "token_ids": token_ids.int(),
            "counts": torch.randint(0, 5, (len(row_of),), generator=generator).int(),
            "repetition": torch.rand(rows, generator=generator).add_(0.6),
            "presence": torch.randn(rows, generator=generator),
            "frequency": torch.randn(rows, generator=generator),
        }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    pairs = torch.empty(1024, dtype=torch.int32, device="meta")
    penalty = torch.empty(32, device="meta")
    yield {
        "padded": torch.empty(32, 128256, dtype=dtype, device="meta"),
        "vocab": 128256,
        "row_of": pairs,
        "token_ids": pairs,
        "counts": pairs,
        "repetition": penalty,
        "presence": penalty,
        "frequency": penalty,
    }


CHECKS = (OpCheck("penalize", _check_triton, _check_reference, _examples, _production, ROUNDING),)
