"""How likely tokens are under their rows' logits: logit[token] - log(sum(exp(logits))), in fp32, read once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import jit, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results

_LANES = 4096


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Natural logarithms of the tokens' probabilities.

    Args:
        logits: [num_rows, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed.
        tokens: [num_rows], int64: ids of the vocabulary.
        wanted: [num_rows], any integer dtype: 0 in the rows that do not ask.

    Returns: [num_rows], fp32; 0 where nobody asks, and where the logits are not finite (NaN, +inf, nothing but -inf, or
        the token's own is -inf).
    """
    call = token_logprobs_triton if uses_triton(logits) else token_logprobs_reference
    (logprobs,) = call(logits, tokens, wanted)
    return logprobs


# One variant for all batch sizes: these are read one number at a time.
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
    """One row a program; each lane has its own largest logit, and its sum relative to that."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(wanted_ptr + row) == 0:
        tl.store(logprob_ptr + row, 0.0)
        return
    row_ptr = logits_ptr + row * row_stride
    lanes = tl.arange(0, LANES)
    # Finite, so that the difference to -inf is a number's.
    largest = tl.full((LANES,), -3.0e38, tl.float32)
    total = tl.full((LANES,), 0.0, tl.float32)
    for start in tl.range(0, vocab, LANES, loop_unroll_factor=4):
        places = start + lanes
        x = tl.load(row_ptr + places, mask=places < vocab, other=float("-inf")).to(tl.float32)
        # NaN stays to the end, and +inf with it.
        x = tl.where(x < float("inf"), x, float("nan"))
        above = x - largest
        # Of the two exponentials that matter one is always 1.
        shrunk = tl.exp(-tl.abs(above))
        total = tl.where(above > 0.0, total * shrunk + 1.0, total + shrunk)
        largest = tl.maximum(largest, x)
    top = tl.max(largest)
    total = tl.sum(total * tl.exp(largest - top))
    logsumexp = top + tl.log(tl.where(total == 0.0, 1.0, total))
    own = tl.load(row_ptr + tl.load(token_ptr + row)).to(tl.float32)
    logprob = own - logsumexp
    tl.store(logprob_ptr + row, tl.where(tl.abs(logprob) < float("inf"), logprob, 0.0))


def token_logprobs_triton(logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor) -> Results:
    """As `token_logprobs`; returns one tensor."""
    rows, vocab = logits.shape
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _logprobs_kernel[(rows,)](
        logits, logits.stride(0), vocab, tokens, wanted, logprobs, LANES=_LANES, num_warps=16
    )
    return (logprobs,)


def token_logprobs_reference(logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor) -> Results:
    """fp64, rounded to fp32."""
    own = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return (own.where(own.isfinite() & (wanted != 0), 0.0).float(),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """In a tensor wider than the vocabulary; rows that do not ask, and rows that are not finite."""
    for rows, vocab, spare in ((1, 1, 0), (8, 97, 3), (3, 9000, 8)):
        logits = torch.randn(rows, vocab + spare, generator=generator).mul_(4.0).to(dtype)
        tokens = torch.randint(vocab, (rows,), generator=generator)
        logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
        logits[torch.arange(rows), tokens] = torch.randn(rows, generator=generator).to(dtype)
        # What stands beyond the vocabulary would have all the probability.
        logits[:, vocab:] = 1000.0
        wanted = torch.ones(rows, dtype=torch.int64)
        if rows > 3:
            logits[1, vocab - 1] = torch.nan
            logits[2, 5] = torch.inf
            logits[3, :vocab] = -torch.inf
            wanted[4] = 0
            # So far apart that only differences can be exponentiated.
            logits[5, :vocab] = logits[5, :vocab] + 300.0
            logits[6, :vocab] = logits[6, :vocab] - 300.0
        yield {"padded": logits, "vocab": vocab, "tokens": tokens, "wanted": wanted}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The vocabulary's size is an argument like any other; of real ones all are divisible by 16.
    whole = torch.empty(32, dtype=torch.int64, device="meta")
    yield {
        "padded": torch.empty(32, 128256, dtype=dtype, device="meta"),
        "vocab": 128256,
        "tokens": whole,
        "wanted": whole,
    }


CHECKS = (
    OpCheck(
        "token_logprobs",
        lambda padded, vocab, **asked: token_logprobs_triton(padded[:, :vocab], **asked),
        lambda padded, vocab, **asked: token_logprobs_reference(padded[:, :vocab], **asked),
        _examples,
        _production,
        # What is read is exact in each dtype, and all that follows is fp32.
        dict.fromkeys(ROUNDING, 2e-5),
    ),
)
