"""Kernels fail if they access memory outside of their tensors, even if that does not change a result."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels._triton import INTERPRETED, jit, tl
from tests.support.bounded_memory import bounded_memory

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


@jit
def _copy(source_ptr, target_ptr, num_read, num_written, BLOCK: tl.constexpr):  # noqa: N803  a constexpr
    columns = tl.arange(0, BLOCK)
    values = tl.load(source_ptr + columns, mask=columns < num_read, other=0.0)
    tl.store(target_ptr + columns, values, mask=columns < num_written)


@jit
def _add(total_ptr, index):
    tl.atomic_add(total_ptr + index, 1)


def _copied(num_read: int, num_written: int) -> torch.Tensor:
    # Both tensors are in the middle of larger storages, so that an undetected access does no harm.
    source, target = torch.arange(24.0)[8:16], torch.zeros(24)
    with bounded_memory():
        _copy[(1,)](source, target[8:16], num_read, num_written, BLOCK=16)
    return target


def test_masked_lanes_access_no_memory() -> None:
    assert _copied(8, 8)[8:16].tolist() == list(range(8, 16))


@pytest.mark.parametrize(("num_read", "num_written"), [(9, 8), (8, 9), (16, 16)])
def test_accesses_past_the_end_are_rejected(num_read: int, num_written: int) -> None:
    with pytest.raises(Exception, match="outside of all tensors"):
        _copied(num_read, num_written)


@pytest.mark.parametrize(("index", "valid"), [(0, True), (3, True), (4, False), (-1, False)])
def test_atomics_outside_of_a_tensor_are_rejected(index: int, valid: bool) -> None:
    counts = torch.zeros(12, dtype=torch.int32)
    with bounded_memory():
        if valid:
            _add[(1,)](counts[4:8], index)
            assert counts.nonzero().tolist() == [[4 + index]]
            return
        with pytest.raises(Exception, match="outside of all tensors"):
            _add[(1,)](counts[4:8], index)
    assert not counts.any()
