"""What is stated of every operation with a Triton kernel, so that one test checks them all: in the interpreter,
compiled ahead of time, and on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, Any]
"""Keyword arguments of an operation and of its reference."""
Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class OpCheck:
    """One operation's kernel and what it is held against."""

    name: str
    launch: Callable[..., torch.Tensor | Results]
    """Runs the Triton kernel on these inputs; returns all that it computed, what it wrote in place included."""
    reference: Callable[..., Results]
    """The same in plain torch and float64, on copies: the inputs stay as they are."""
    examples: Callable[[torch.Generator, torch.dtype], Iterator[Inputs]]
    """Fresh random inputs on the CPU: odd shapes, tails, padding rows, shuffled pages; small enough for the
    interpreter (seconds for all of them)."""
    production: Callable[[torch.dtype], Iterator[Inputs]]
    """Calls with the shapes of real models, all tensors on the `meta` device: what is compiled ahead of time. Each
    variant (constexpr) that serving can launch appears once."""
    tolerance: dict[torch.dtype, float]
    """Largest absolute and relative error, by the inputs' dtype."""
    exact: bool = False
    """Results are whole numbers, compared for equality."""


ROUNDING = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Errors of a few roundings in each dtype, sums being fp32."""

MODULES = tuple(
    f"tests.kernels.references.{name}"
    for name in (
        "truncate_logits",
        "choose_tokens",
        "count_tokens",
        "token_logprobs",
        "random_numbers",
        "experts",
        "activate",
        "activate_and_mul",
        "grouped_matmul",
        "layer_norm",
        "rms_norm",
        "rope_and_store",
        "route",
        "step_inputs",
        "sum_choices",
        "update_block_tables",
        "varlen_attention",
        "decode_plan",
        "combine_parts",
        "decode_attention",
    )
)


def all_checks() -> list[OpCheck]:
    """Of every operation with a Triton kernel: the `CHECKS` of its module here."""
    checks: list[OpCheck] = []
    for name in MODULES:
        checks.extend(importlib.import_module(name).CHECKS)
    return checks
