"""Reference for `route` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import register_dataclass

from lmi_kernels.linear.route import Routing, max_blocks, route
from tests.kernels.references.check import Inputs, OpCheck, Results

# Checks move the tensors in it to the device.
register_dataclass(Routing)


def route_reference(
    router_logits: torch.Tensor,
    top_k: int,
    block_m: int,
    slots: torch.Tensor | None = None,
    renormalize: bool = True,
) -> Routing:
    """Route in plain loops. Weights are in fp64, and 0 for padding. Entries after the last block hold num_choices."""
    num_rows, num_experts = router_logits.shape
    logits64 = router_logits.double()
    chosen = logits64.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    real = torch.ones(num_rows, dtype=torch.bool) if slots is None else slots >= 0
    sorted_choices: list[int] = []
    ends = []
    for expert in range(num_experts):
        rows, ranks = torch.nonzero((chosen == expert) & real[:, None], as_tuple=True)
        sorted_choices += (rows * top_k + ranks).tolist()
        sorted_choices += [num_rows * top_k] * (-len(sorted_choices) % block_m)
        ends.append(len(sorted_choices) // block_m)
    sorted_choices += [num_rows * top_k] * (
        max_blocks(num_rows * top_k, num_experts, block_m) * block_m - len(sorted_choices)
    )
    best = logits64.gather(1, chosen)
    choice_weights = torch.softmax(best, -1) if renormalize else torch.softmax(logits64, -1).gather(1, chosen)
    choice_weights = choice_weights.where(real[:, None], 0.0).flatten()
    return Routing(
        torch.tensor(sorted_choices, dtype=torch.int32),
        torch.tensor(ends, dtype=torch.int32),
        choice_weights,
        block_m,
    )


def _launch(top_k: int, slots: torch.Tensor | None = None, **inputs: Any) -> Results:
    """Return only the defined results: blocks that belong to an expert, and weights of real rows."""
    routing = route(top_k=top_k, slots=slots, **inputs)
    choice_weights = routing.choice_weights
    if slots is not None:
        choice_weights = choice_weights.where(slots.repeat_interleave(top_k) >= 0, 0.0)
    places = torch.arange(len(routing.sorted_choices), device=choice_weights.device)
    used = places < routing.block_ends[-1] * routing.block_m
    return routing.sorted_choices.where(used, routing.num_choices), routing.block_ends, choice_weights


def _reference(**inputs: Any) -> Results:
    routing = route_reference(**inputs)
    return routing.sorted_choices, routing.block_ends, routing.choice_weights


def example_logits(
    generator: torch.Generator, num_rows: int, num_experts: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return multiples of 1/16, exact in every dtype, with ties. One expert is hardly ever chosen."""
    logits = (torch.randn(num_rows, num_experts, generator=generator) * 16).round() / 16
    logits[:, int(torch.randint(num_experts, (), generator=generator))] -= 100
    return logits.to(dtype)


def example_slots(num_rows: int, num_real: int) -> torch.Tensor:
    """Return slots with padding after the real rows, as in decode graphs."""
    return torch.where(torch.arange(num_rows) < num_real, torch.arange(num_rows) * 7, -1)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for num_rows, num_real in ((8, 5), (24, 17), (3, 0)):
        logits = example_logits(generator, num_rows, 8, dtype)
        slots = example_slots(num_rows, num_real)
        yield {"router_logits": logits, "top_k": 2, "block_m": 16, "slots": slots}
    # Extremes: weights of 0 and 1, and equal logits.
    logits = torch.tensor([[6e4, -6e4, 0.0], [0.0, 0.0, 0.0], [-5e4, -6e4, -5e4]], dtype=dtype)
    for renormalize in (True, False):
        yield {"router_logits": logits, "top_k": 2, "block_m": 16, "renormalize": renormalize}
    shapes = (
        (1, 3, 1, 16),
        (2, 8, 2, 16),
        (40, 5, 3, 16),
        (7, 4, 4, 32),
        (17, 1, 1, 16),
        # More rows than a program loads at a time: in general, and with many experts.
        (520, 4, 2, 64),
        (34, 66, 3, 16),
    )
    for num_rows, num_experts, top_k, block_m in shapes:
        logits = example_logits(generator, num_rows, num_experts, dtype)
        yield {"router_logits": logits, "top_k": top_k, "block_m": block_m, "renormalize": top_k != 2}


CHECKS = (OpCheck("route", _launch, _reference, _examples),)
