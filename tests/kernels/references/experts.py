"""Reference for `experts` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmi_kernels.elementwise.activate import Activation
from lmi_kernels.linear.experts import ExpertWeights, experts
from tests.kernels.references.check import Inputs, OpCheck, Results
from tests.kernels.references.grouped_matmul import down_reference, gate_up_reference
from tests.kernels.references.route import example_logits, example_slots, route_reference


def experts_reference(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    top_k: int,
    slots: torch.Tensor | None = None,
    renormalize: bool = True,
    gated: Activation = "silu",
) -> Results:
    """Compute in fp64, expert by expert."""
    routing = route_reference(router_logits, top_k, 1, slots, renormalize)
    parts = down_reference(gate_up_reference(x, gate_up, routing, gated), down, routing)
    return (parts.view(len(x), top_k, -1).sum(dim=1),)


def _launch(
    gate_up: torch.Tensor, down: torch.Tensor, gated: Activation = "silu", **inputs: Any
) -> torch.Tensor:
    return experts(weights=ExpertWeights(None, (gate_up, down), gated), **inputs)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield inputs that use each tile size once."""
    hidden, intermediate = 36, 50

    def example(rows: int, num_experts: int, top_k: int, **more: Any) -> Inputs:
        gate_up = torch.randn(num_experts, 2 * intermediate, hidden, generator=generator) / hidden**0.5
        down = torch.randn(num_experts, hidden, intermediate, generator=generator) / intermediate**0.5
        return {
            "x": torch.randn(rows, hidden, generator=generator).to(dtype),
            "router_logits": example_logits(generator, rows, num_experts, dtype),
            "gate_up": gate_up.to(dtype),
            "down": down.to(dtype),
            "top_k": top_k,
            **more,
        }

    for sizes in ((1, 3, 1), (2, 8, 2), (17, 7, 3), (40, 5, 2), (60, 3, 2), (80, 3, 2)):
        yield example(*sizes)
    for rows, num_real, top_k in ((8, 3, 2), (24, 17, 1)):
        yield example(rows, 8, top_k, slots=example_slots(rows, num_real))
    yield example(5, 6, 2, renormalize=False, gated="gelu")


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield decodes and prompts of Mixtral 8x7B. fp16 needs only some of them, because its tiles are those of bf16."""
    hidden, intermediate = 4096, 14336
    gate_up = torch.empty(8, 2 * intermediate, hidden, dtype=dtype, device="meta")
    down = torch.empty(8, hidden, intermediate, dtype=dtype, device="meta")
    for rows in (1, 32, 64, 128, 192, 256, 2048) if dtype == torch.bfloat16 else (32, 2048):
        x = torch.empty(rows, hidden, dtype=dtype, device="meta")
        logits = torch.empty(rows, 8, dtype=dtype, device="meta")
        slots = torch.empty(rows, dtype=torch.int64, device="meta")
        yield {"x": x, "router_logits": logits, "gate_up": gate_up, "down": down, "top_k": 2, "slots": slots}
    # Qwen3-MoE without renormalization, and with GELU by erf, the longest of the activations.
    gate_up = torch.empty(128, 2 * 768, 2048, dtype=dtype, device="meta")
    down = torch.empty(128, 2048, 768, dtype=dtype, device="meta")
    x, logits = (torch.empty(32, n, dtype=dtype, device="meta") for n in (2048, 128))
    slots = torch.empty(32, dtype=torch.int64, device="meta")
    inputs = {"x": x, "router_logits": logits, "gate_up": gate_up, "down": down, "top_k": 8, "slots": slots}
    yield inputs | {"renormalize": False}
    yield inputs | {"gated": "gelu"}
    x, logits = (torch.empty(2048, n, dtype=dtype, device="meta") for n in (2048, 128))
    slots = torch.empty(2048, dtype=torch.int64, device="meta")
    yield inputs | {"x": x, "router_logits": logits, "slots": slots}


CHECKS = (OpCheck("experts", _launch, experts_reference, _examples, _production),)
