"""Log-probabilities of tokens, logit[token] - log(sum(exp(logits))), in fp32 with one pass over the logits."""

from __future__ import annotations

import torch

from lmi_kernels._triton import jit, tl, uses_triton

_LANES = 4096


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Compute the tokens' natural log-probabilities.

    Args:
        logits: [num_rows, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed.
        tokens: [num_rows], int64: one token id per row.
        wanted: [num_rows], any integer dtype: 0 for rows to skip.

    Returns: [num_rows], fp32. 0 for skipped rows, for rows that are not finite (NaN, +inf, or only -inf), and for
        tokens with a logit of -inf.
    """
    if not uses_triton(logits):
        own = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        return own.where(own.isfinite() & (wanted != 0), 0.0).float()
    rows, vocab = logits.shape
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _logprobs_kernel[(rows,)](
        logits, logits.stride(0), vocab, tokens, wanted, logprobs, LANES=_LANES, num_warps=16
    )
    return logprobs


# One compiled variant for all batch sizes. These pointers are read one number at a time, so alignment does not matter.
@jit(do_not_specialize_on_alignment=["token_ptr", "wanted_ptr"])
def _logprobs_kernel(
    logits_ptr,
    row_stride,
    vocab,
    token_ptr,
    wanted_ptr,
    logprob_ptr,
    LANES: tl.constexpr,
):
    """Compute one row. Each lane has its own largest logit, and its sum is relative to that logit."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(wanted_ptr + row) == 0:
        tl.store(logprob_ptr + row, 0.0)
        return
    row_ptr = logits_ptr + row * row_stride
    lanes = tl.arange(0, LANES)
    # Finite, so that subtracting it from -inf does not give NaN.
    largest = tl.full((LANES,), -3.0e38, tl.float32)
    total = tl.full((LANES,), 0.0, tl.float32)
    for start in tl.range(0, vocab, LANES, loop_unroll_factor=4):
        places = start + lanes
        x = tl.load(row_ptr + places, mask=places < vocab, other=float("-inf")).to(tl.float32)
        # +inf becomes NaN, and NaN propagates to the result.
        x = tl.where(x < float("inf"), x, float("nan"))
        above = x - largest
        # One of the two exponentials is always 1.
        shrunk = tl.exp(-tl.abs(above))
        total = tl.where(above > 0.0, total * shrunk + 1.0, total + shrunk)
        largest = tl.maximum(largest, x)
    top = tl.max(largest)
    total = tl.sum(total * tl.exp(largest - top))
    logsumexp = top + tl.log(tl.where(total == 0.0, 1.0, total))
    own = tl.load(row_ptr + tl.load(token_ptr + row)).to(tl.float32)
    logprob = own - logsumexp
    tl.store(logprob_ptr + row, tl.where(tl.abs(logprob) < float("inf"), logprob, 0.0))
