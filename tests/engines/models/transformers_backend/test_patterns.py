"""Modules that one native operation can replace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from engines.models.transformers_backend.patterns import gate_activation


class _GatedMlp(nn.Module):
    def __init__(self, before: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 6), nn.Linear(8, 6)
        self.down_proj = nn.Linear(6, 8)
        self._before = before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._before(x)
        y: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (lambda x: x.contiguous(), "silu"),
        (lambda x: x * 0.5, None),
        (lambda x: x.mul_(0.5), None),
        (lambda x: x.half(), None),
        (lambda x: nn.functional.rms_norm(x, (8,)), None),
    ],
)
def test_a_gated_mlp_is_replaced_only_if_it_does_not_change_its_input(
    before: Callable[[torch.Tensor], torch.Tensor], found: str | None
) -> None:
    module = _GatedMlp(before)
    children = dict(module.named_children())
    assert gate_activation(module, ("gate_proj", "up_proj"), "down_proj", (8, 6)) == found
    assert dict(module.named_children()) == children
