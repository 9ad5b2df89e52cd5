"""`route` in plain torch, and the inputs that its kernel is checked with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmi_kernels.linear.route import Routing, max_blocks, route
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results


def route_reference(
    router_logits: torch.Tensor,
    top_k: int,
    block_m: int,
    slots: torch.Tensor | None = None,
    renormalise: bool = True,
) -> Routing:
    """In plain loops, shares in fp64, those of padding 0; places beyond the last block hold num_choices."""
    num_rows, num_experts = router_logits.shape
    wide = router_logits.double()
    chosen = wide.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    real = torch.ones(num_rows, dtype=torch.bool) if slots is None else slots >= 0
    places: list[int] = []
    ends = []
    for expert in range(num_experts):
        rows, ranks = torch.nonzero((chosen == expert) & real[:, None], as_tuple=True)
        places += (rows * top_k + ranks).tolist()
        places += [num_rows * top_k] * (-len(places) % block_m)
        ends.append(len(places) // block_m)
    places += [num_rows * top_k] * (
        max_blocks(num_rows * top_k, num_experts, block_m) * block_m - len(places)
    )
    best = wide.gather(1, chosen)
    shares = torch.softmax(best, -1) if renormalise else torch.softmax(wide, -1).gather(1, chosen)
    shares = shares.where(real[:, None], 0.0).flatten()
    return Routing(
        torch.tensor(places, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32), shares, block_m
    )


def _check(
    router_logits: torch.Tensor,
    top_k: int,
    block_m: int,
    slots: torch.Tensor | None = None,
    renormalise: bool = True,
) -> Results:
    """Of the sorted choices only those blocks that some expert has, and of the shares only those of real rows."""
    routing = route(router_logits, top_k, block_m, slots, renormalise)
    shares = routing.choice_weights
    if slots is not None:
        shares = shares.where(slots.repeat_interleave(top_k) >= 0, 0.0)
    used = (
        torch.arange(len(routing.sorted_choices), device=router_logits.device)
        < routing.block_ends[-1] * block_m
    )
    return routing.sorted_choices.where(used, routing.num_choices), routing.block_ends, shares


def _reference(**inputs: Any) -> Results:
    routing = route_reference(**inputs)
    return routing.sorted_choices, routing.block_ends, routing.choice_weights


def example_logits(
    generator: torch.Generator, num_rows: int, num_experts: int, dtype: torch.dtype
) -> torch.Tensor:
    """Multiples of 1/16, which every dtype holds, so that there are ties; and one expert that hardly any row wants."""
    logits = (torch.randn(num_rows, num_experts, generator=generator) * 16).round() / 16
    logits[:, int(torch.randint(num_experts, (), generator=generator))] -= 100
    return logits.to(dtype)


def example_slots(num_rows: int, num_real: int) -> torch.Tensor:
    """Padding behind the real rows, as in the graphs of decodes."""
    return torch.where(torch.arange(num_rows) < num_real, torch.arange(num_rows) * 7, -1)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    shapes = (
        (1, 3, 1, 16),
        (2, 8, 2, 16),
        (40, 5, 3, 16),
        (7, 4, 4, 32),
        (17, 1, 1, 16),
        (700, 6, 2, 64),
        (40, 70, 3, 16),
    )
    for num_rows, num_experts, top_k, block_m in shapes:
        logits = example_logits(generator, num_rows, num_experts, dtype)
        yield {"router_logits": logits, "top_k": top_k, "block_m": block_m, "renormalise": top_k != 2}
    for num_rows, num_real in ((8, 5), (24, 17), (3, 0)):
        logits = example_logits(generator, num_rows, 8, dtype)
        slots = example_slots(num_rows, num_real)
        yield {"router_logits": logits, "top_k": 2, "block_m": 16, "slots": slots}
    # Extremes: shares of 0 and 1, and no difference at all.
    logits = torch.tensor([[6e4, -6e4, 0.0], [0.0, 0.0, 0.0], [-5e4, -6e4, -5e4]], dtype=dtype)
    for renormalise in (True, False):
        yield {"router_logits": logits, "top_k": 2, "block_m": 16, "renormalise": renormalise}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    """None: compiled with `experts`, which alone launches it."""
    return iter(())


CHECKS = (OpCheck("route", _check, _reference, _examples, _production, ROUNDING),)
