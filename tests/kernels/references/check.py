"""Checks of all operations with a Triton kernel. The same test runs them in the interpreter and on a GPU, and their
kernels are compiled ahead of time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = dict[str, Any]
"""Keyword arguments of an operation and of its reference."""
Results = tuple[torch.Tensor, ...]

ROUNDING = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Tolerances for a few roundings in each dtype, with sums in fp32."""


@dataclass(frozen=True, slots=True)
class OpCheck:
    """An operation's kernel, its reference, and inputs to compare them with."""

    name: str
    launch: Callable[..., torch.Tensor | Results]
    """Runs the Triton kernel on these inputs. Returns all results, including tensors written in place."""
    reference: Callable[..., Results]
    """Computes the same in plain torch and float64, without changing the inputs."""
    examples: Callable[[torch.Generator, torch.dtype], Iterator[Inputs]]
    """Yields new random inputs on the CPU: odd shapes, tails, padding rows, shuffled pages. They are small enough for
    the interpreter (seconds for all of them)."""
    production: Callable[[torch.dtype], Iterator[Inputs]] = lambda dtype: iter(())
    """Yields inputs with the shapes of real models for ahead-of-time compilation, all tensors on the `meta` device.
    Each variant (constexpr) that serving can launch appears once. Default: none, since the kernel is compiled with the
    operation that launches it."""
    tolerance: dict[torch.dtype, float] = field(default_factory=ROUNDING.copy)
    """Largest absolute and relative error, by the inputs' dtype."""
    exact: bool = False
    """True: results are compared for equality."""


def with_residual(calls: Iterator[Inputs], generator: torch.Generator | None = None) -> Iterator[Inputs]:
    """Add a residual like x to each call."""
    for inputs in calls:
        yield inputs | {"residual": torch.empty_like(inputs["x"]).normal_(generator=generator)}


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
    """Return the `CHECKS` of all modules."""
    checks: list[OpCheck] = []
    for name in MODULES:
        checks.extend(importlib.import_module(name).CHECKS)
    return checks
