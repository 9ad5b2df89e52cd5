"""Compare an operation's Triton kernel with its reference: on new random inputs, with poisoned memory, and with bounds
checks in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_map

from tests.kernels.references.check import Inputs, OpCheck
from tests.support.bounded_memory import bounded_memory


def check_parity(check: OpCheck, dtype: torch.dtype, generator: torch.Generator, device: str = "cpu") -> int:
    """Raise AssertionError if kernel and reference differ. Return the number of examples compared."""
    count = 0
    for inputs in check.examples(generator, dtype):
        expected = check.reference(**inputs)
        with poisoned_memory(), bounded_memory():
            computed = check.launch(**_moved(inputs, device))
        found = (computed,) if isinstance(computed, torch.Tensor) else computed
        assert len(found) == len(expected), f"{check.name}: {len(found)} results, {len(expected)} expected"
        for i, (got, want) in enumerate(zip(found, expected, strict=True)):
            _compare(check, dtype, f"{check.name}, example {count}, result {i}", got.cpu(), want)
        count += 1
    assert count, f"{check.name} has no examples"
    return count


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new memory (`torch.empty` and the like) with NaN or the largest number, to expose unwritten elements."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    # Only needed to fill memory. Operations without a deterministic implementation just warn.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def _moved(inputs: Inputs, device: str) -> Inputs:
    """Copy the inputs, so that the kernel does not overwrite those of the reference."""
    moved: Inputs = tree_map(
        lambda value: value.to(device, copy=True) if isinstance(value, torch.Tensor) else value, inputs
    )
    return moved


def _compare(check: OpCheck, dtype: torch.dtype, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if check.exact or not want.is_floating_point():
        assert torch.equal(got.to(want.dtype), want), f"{what}: {got} is not {want}"
        return
    tolerance = check.tolerance[dtype]
    torch.testing.assert_close(
        got.double(),
        want.double(),
        rtol=tolerance,
        atol=tolerance,
        msg=lambda message: f"{what}: {message}",
    )
