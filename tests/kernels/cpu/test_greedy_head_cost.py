"""The greedy head computes few products exactly, and stops using bounds that leave too much."""

from __future__ import annotations

import torch

import lmi_kernels
from lmi_kernels.cpu import Recorder, bind
from lmi_kernels.cpu.structs import Step
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.linear.linear import LinearWeight
from tests.kernels.cpu.heads import FIRST_ID, Head, best
from tests.support.seeds import fresh_generator

_PAUSE = 15
"""`kPause` of `native/greedy_head.inc`."""


def test_few_logits_are_computed_exactly(team: Team) -> None:
    """A column that the bounds exclude is not read: it may hold anything."""
    generator = fresh_generator()
    matrix = torch.randn(3200, 256, generator=generator)
    direction = torch.nn.functional.normalize(torch.randn(256, generator=generator), dim=0)
    matrix[1600:1632] = direction * 40
    head = Head(team, matrix)
    expected = head.find(direction[None])
    assert 1600 <= expected[0, 1] - FIRST_ID < 1632
    poisoned = matrix.clone()
    poisoned[:1600], poisoned[1632:] = torch.nan, torch.nan
    # The int8 copy of the whole matrix, exact numbers only of the columns that can win.
    mixed = Recorder(team, 1)
    x = direction[None].clone()
    packed = LinearWeight(None, None, None, NativeWeight(team, poisoned))
    found = lmi_kernels.greedy_head(mixed.gather(x, 256), packed, head.bounds, FIRST_ID)
    assert isinstance(found, lmi_kernels.cpu.Rows)
    places = torch.zeros(1, dtype=torch.int32)
    result = bind(mixed, found).run(Step(num_places=1, places=places.data_ptr()))
    assert torch.equal(result, expected)


def _calls_before_bounds(head: Head, x: torch.Tensor, expected: torch.Tensor) -> int:
    """Return the number of calls without bounds, which give the result of all logits, before the next one with bounds.
    Bounds are spoiled, so that they exclude everything."""
    norms = head.bounds.column_norms
    good, count = norms.clone(), 0
    norms.fill_(-1e9)
    while torch.equal(found := head.find(x), expected):
        count += 1
    assert found[:, 0].isnan().all()
    norms.copy_(good)
    return count


def test_bounds_that_leave_too_much_are_left_out_for_a_while(team: Team) -> None:
    generator = fresh_generator()
    matrix = torch.randn(3200, 256, generator=generator).mul_(1e-6)
    direction = torch.nn.functional.normalize(torch.randn(256, generator=generator), dim=0)
    head = Head(team, matrix + direction)
    flat = direction + torch.randn(5, 256, generator=generator).mul_(1e-6)
    expected = best(head.logits(flat))
    assert torch.equal(head.find(flat), expected)
    assert _calls_before_bounds(head, flat, expected) == _PAUSE

    matrix[1600:1632] = direction * 2
    head = Head(team, matrix + direction)
    expected = best(head.logits(flat))
    for _ in range(3):
        assert torch.equal(head.find(flat), expected)
    assert _calls_before_bounds(head, flat, expected) == 0
