"""Reference for `sum_choices` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.linear.sum_choices import sum_choices
from tests.kernels.references.check import Inputs, OpCheck, Results


def _launch(parts: torch.Tensor, top_k: int, slots: torch.Tensor | None = None) -> Results:
    return (sum_choices(parts, top_k, slots),)


def sum_choices_reference(parts: torch.Tensor, top_k: int, slots: torch.Tensor | None = None) -> Results:
    total = parts.double().view(-1, top_k, parts.shape[1]).sum(dim=1)
    return (total if slots is None else total.where(slots[:, None] >= 0, 0.0),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, top_k, hidden in ((1, 1, 36), (3, 2, 1500), (5, 3, 64)):
        yield {"parts": torch.randn(rows * top_k, hidden, generator=generator).to(dtype), "top_k": top_k}
    parts = torch.randn(10, 36, generator=generator).to(dtype)
    parts[4:6] = torch.nan
    yield {"parts": parts, "top_k": 2, "slots": torch.tensor([3, 0, -1, 5, 9])}


CHECKS = (OpCheck("sum_choices", _launch, sum_choices_reference, _examples),)
