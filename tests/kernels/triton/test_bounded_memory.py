"""Kernels that leave their tensors are stopped, whether or not the wrong memory changes a result."""

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
    # Both lie in the middle of larger storages, so that the wrong memory is there and nothing is broken by a miss.
    source, target = torch.arange(24.0)[8:16], torch.zeros(24)
    with bounded_memory():
        _copy[(1,)](source, target[8:16], num_read, num_written, BLOCK=16)
    return target


def test_masked_lanes_access_nothing() -> None:
    assert _copied(8, 8)[8:16].tolist() == list(range(8, 16))


@pytest.mark.parametrize(("num_read", "num_written"), [(9, 8), (8, 9), (16, 16)])
def test_one_element_too_far_is_refused(num_read: int, num_written: int) -> None:
    with pytest.raises(Exception, match="outside of all tensors"):
        _copied(num_read, num_written)


@pytest.mark.parametrize(("index", "right"), [(0, True), (3, True), (4, False), (-1, False)])
def test_atomics_are_bounded(index: int, right: bool) -> None:
    counts = torch.zeros(12, dtype=torch.int32)
    with bounded_memory():
        if right:
            _add[(1,)](counts[4:8], index)
            assert counts.nonzero().tolist() == [[4 + index]]
            return
        with pytest.raises(Exception, match="outside of all tensors"):
            _add[(1,)](counts[4:8], index)
    assert not counts.any()
