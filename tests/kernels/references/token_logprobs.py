"""Reference for `token_logprobs` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.sampling.token_logprobs import token_logprobs
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results


def token_logprobs_reference(logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor) -> Results:
    own = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return (own.where(own.isfinite() & (wanted != 0), 0.0).float(),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield tensors wider than the vocabulary, with rows that want no log-probability, and rows that are not finite."""
    for rows, vocab, spare in ((1, 1, 0), (8, 97, 3), (3, 9000, 8)):
        logits = torch.randn(rows, vocab + spare, generator=generator).mul_(4.0).to(dtype)
        tokens = torch.randint(vocab, (rows,), generator=generator)
        logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
        logits[torch.arange(rows), tokens] = torch.randn(rows, generator=generator).to(dtype)
        # Logits beyond the vocabulary would have all the probability.
        logits[:, vocab:] = 1000.0
        wanted = torch.ones(rows, dtype=torch.int64)
        if rows > 3:
            logits[1, vocab - 1] = torch.nan
            logits[2, 5] = torch.inf
            logits[3, :vocab] = -torch.inf
            wanted[4] = 0
            # So large that only differences can be exponentiated.
            logits[5, :vocab] = logits[5, :vocab] + 300.0
            logits[6, :vocab] = logits[6, :vocab] - 300.0
        yield {"padded": logits, "vocab": vocab, "tokens": tokens, "wanted": wanted}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The vocabulary size is not a constexpr, and all real ones are divisible by 16.
    integers = torch.empty(32, dtype=torch.int64, device="meta")
    yield {
        "padded": torch.empty(32, 128256, dtype=dtype, device="meta"),
        "vocab": 128256,
        "tokens": integers,
        "wanted": integers,
    }


CHECKS = (
    OpCheck(
        "token_logprobs",
        lambda padded, vocab, **inputs: token_logprobs(padded[:, :vocab], **inputs),
        lambda padded, vocab, **inputs: token_logprobs_reference(padded[:, :vocab], **inputs),
        _examples,
        _production,
        # Inputs are exact in each dtype, and everything is computed in fp32.
        dict.fromkeys(ROUNDING, 2e-5),
    ),
)
