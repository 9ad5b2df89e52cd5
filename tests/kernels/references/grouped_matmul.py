"""Reference for `grouped_matmul` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from lmi_kernels.elementwise.activate import Activation
from lmi_kernels.linear.grouped_matmul import down_matmul, gate_up_matmul
from lmi_kernels.linear.route import Routing
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.kernels.references.check import Inputs, OpCheck
from tests.kernels.references.route import example_logits, route_reference


def gate_up_reference(
    a: torch.Tensor, weight: torch.Tensor, routing: Routing, gate: Activation
) -> torch.Tensor:
    """Compute in fp64, expert by expert."""
    out = torch.zeros(routing.num_choices, weight.shape[1] // 2, dtype=torch.float64)
    for expert, choices in _choices_by_expert(routing):
        gates, ups = (
            a[choices // (routing.num_choices // len(a))].double() @ weight[expert].double().T
        ).chunk(2, -1)
        out[choices] = TORCH_ACTIVATIONS[gate](gates) * ups
    return out


def down_reference(a: torch.Tensor, weight: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Compute in fp64, expert by expert."""
    out = torch.zeros(routing.num_choices, weight.shape[1], dtype=torch.float64)
    for expert, choices in _choices_by_expert(routing):
        out[choices] = (
            a[choices].double()
            @ weight[expert].double().T
            * routing.choice_weights[choices].double()[:, None]
        )
    return out


def _choices_by_expert(routing: Routing) -> Iterator[tuple[int, torch.Tensor]]:
    start = 0
    for expert, end in enumerate(routing.block_ends.tolist()):
        choices = routing.sorted_choices[start * routing.block_m : end * routing.block_m].long()
        yield expert, choices[choices < routing.num_choices]
        start = end


_TILES = {"block_n": 16, "block_k": 32, "group_m": 3, "num_warps": 4, "num_stages": 2}


def _examples(generator: torch.Generator, dtype: torch.dtype, gated: bool) -> Iterator[Inputs]:
    """Yield inputs routed by the reference. Choices after the last expert's blocks must not be read."""
    for rows, experts, top_k, block_m, hidden, intermediate in (
        (1, 3, 1, 16, 36, 50),
        (2, 8, 2, 16, 64, 32),
        (25, 4, 3, 16, 36, 50),
        (33, 3, 2, 32, 24, 20),
    ):
        logits = example_logits(generator, rows, experts, dtype)
        routing = route_reference(logits, top_k, block_m)
        routing.sorted_choices[int(routing.block_ends[-1]) * block_m :] = 0
        n, k = (2 * intermediate, hidden) if gated else (hidden, intermediate)
        a = torch.randn(rows if gated else rows * top_k, k, generator=generator)
        weight = torch.randn(experts, n, k, generator=generator) / k**0.5
        yield {
            "a": a.to(dtype),
            "weight": weight.to(dtype),
            "routing": replace(routing, choice_weights=routing.choice_weights.float()),
        } | ({"gate": "gelu_tanh" if top_k == 1 else "silu"} if gated else {})


CHECKS = (
    OpCheck(
        "gate_up_matmul",
        lambda a, weight, routing, gate: gate_up_matmul(a, weight, routing, _TILES, gate),
        lambda **inputs: (gate_up_reference(**inputs),),
        partial(_examples, gated=True),
    ),
    OpCheck(
        "down_matmul",
        lambda a, weight, routing: down_matmul(a, weight, routing, _TILES),
        lambda **inputs: (down_reference(**inputs),),
        partial(_examples, gated=False),
    ),
)
