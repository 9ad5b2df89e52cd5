"""`penalties` in plain torch, and the inputs that its kernel is checked with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.sampling.penalties import penalize_reference, penalize_triton
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results


def _check_penalize(padded: torch.Tensor, vocab: int, **asked: torch.Tensor) -> Results:
    """Without the rows in which anything may stand."""
    (penalized,) = penalize_triton(padded[:, :vocab], **asked)
    return (penalized.where(asked["penalizes"][:, None] != 0, 0.0),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, vocab, spare in ((1, 1, 0), (5, 97, 3), (4, 5000, 8)):
        logits = torch.randn(rows, vocab + spare, generator=generator).mul_(3.0).to(dtype)
        logits[:, ::7] = -torch.inf
        counts = torch.randint(0, 7, (rows + 2, vocab), generator=generator).to(torch.int16)
        counts[torch.rand(counts.shape, generator=generator) < 0.5] = 0
        counts[:, 1::11] = 2**15 - 1
        penalizes = torch.ones(rows, dtype=torch.int64)
        penalizes[3:4] = 0
        yield {
            "padded": logits,
            "vocab": vocab,
            "table_rows": torch.randperm(rows + 2, generator=generator)[:rows],
            "counts": counts,
            "penalizes": penalizes,
            "repetition": torch.rand(rows, dtype=torch.float64, generator=generator).add_(0.6),
            "presence": torch.randn(rows, dtype=torch.float64, generator=generator),
            "frequency": torch.randn(rows, dtype=torch.float64, generator=generator).mul_(1e-2),
        }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    whole = torch.empty(32, dtype=torch.int64, device="meta")
    yield {
        "padded": torch.empty(32, 128256, dtype=dtype, device="meta"),
        "vocab": 128256,
        "table_rows": whole,
        "counts": torch.empty(33, 128256, dtype=torch.int16, device="meta"),
        "penalizes": whole,
        "repetition": whole.double(),
        "presence": whole.double(),
        "frequency": whole.double(),
    }


CHECKS = (
    OpCheck(
        "penalize",
        _check_penalize,
        lambda padded, vocab, **asked: penalize_reference(padded[:, :vocab], **asked),
        _examples,
        _production,
        # What is read is exact in each dtype, and all that follows is fp32.
        dict.fromkeys(ROUNDING, 2e-5),
    ),
)
