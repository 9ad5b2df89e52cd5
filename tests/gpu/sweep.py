"""Launch parameters by climbing: one parameter is changed at a time, and what is faster stays, until nothing is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lmi_kernels import tuning
from tests.gpu.kv import relative_error
from tests.gpu.timing import Call, Deadline, time_graph

_BETTER = 0.99
"""Less than this share of the time counts as faster: the rest is noise."""
_SAME = 2e-2
"""Relative error between two ways to compute the same in 16 bits."""


@dataclass(frozen=True, slots=True)
class Subject:
    operation: str
    key: str
    space: Mapping[str, Sequence[int]]
    """By parameter, the values to be tried; parameters that are not named stay."""
    make: Callable[[], list[list[Call]]]
    """Groups of calls; the geometric mean of the groups' times is what is made small."""
    fits: Callable[[tuning.Parameters], bool] = lambda parameters: True
    """Whether the kernel takes them."""


@dataclass(frozen=True, slots=True)
class Found:
    parameters: tuning.Parameters
    before: float
    after: float
    """Seconds."""
    tried: int
    wrong: tuple[str, ...] = ()
    """Parameters with which the kernel computes something else: an error of its own, or of the compiler."""


def climb(subject: Subject, device: torch.device, deadline: Deadline, repeats: int) -> Found:
    """
    Raises:
        RuntimeError: what is in use now cannot be launched.
    """
    groups = subject.make()
    best = dict(tuning.parameters(subject.operation, subject.key, device))
    with override(subject, best, device):
        right = groups[0][0]()
        first = least = _seconds(groups, device, repeats)
    seen = {_frozen(best)}
    wrong: list[str] = []
    gains = True
    while gains and not deadline.passed:
        gains = False
        for name, values in subject.space.items():
            for value in values:
                tried = best | {name: value}
                if name not in best or _frozen(tried) in seen or deadline.passed or not subject.fits(tried):
                    continue
                seen.add(_frozen(tried))
                seconds = _try(subject, tried, device, groups, right, repeats)
                if math.isnan(seconds):
                    wrong.append(str(tried))
                if seconds < _BETTER * least:
                    best, least, gains = tried, seconds, True
                    print(
                        f"    {subject.operation}, {subject.key}: {seconds * 1e6:.1f} us with {best}",
                        flush=True,
                    )
    return Found(best, first, least, len(seen), tuple(wrong))


@contextmanager
def override(subject: Subject, parameters: tuning.Parameters, device: torch.device) -> Iterator[None]:
    """Launchers take these parameters of the device inside."""
    # The one place that all of them ask, directly or by a name that they have imported.
    table = tuning._table(tuning.tables(device)[0]).setdefault(subject.operation, {})
    before = table.get(subject.key)
    table[subject.key] = parameters
    try:
        yield
    finally:
        if before is None:
            del table[subject.key]
        else:
            table[subject.key] = before


def _try(
    subject: Subject,
    parameters: tuning.Parameters,
    device: torch.device,
    groups: Sequence[Sequence[Call]],
    right: object,
    repeats: int,
) -> float:
    """Seconds; infinite where they cannot be launched, NaN where they compute something else."""
    with override(subject, parameters, device):
        try:
            found = groups[0][0]()
            if not isinstance(found, torch.Tensor) or not isinstance(right, torch.Tensor):
                raise TypeError("a call returns what it has computed")
            error = relative_error(found, right.double())
            if error > _SAME:
                print(
                    f"    {subject.operation}, {subject.key}: {parameters} is wrong by {error:.1e}",
                    flush=True,
                )
                return math.nan
            return _seconds(groups, device, repeats)
        except Exception as error:
            # Too much shared memory, or what the compiler does not take: another way is tried.
            print(f"    {subject.operation}, {subject.key}: {parameters}: {type(error).__name__}", flush=True)
            return math.inf


def _seconds(groups: Sequence[Sequence[Call]], device: torch.device, repeats: int) -> float:
    times = [time_graph(calls, device, repeats).median for calls in groups]
    return math.prod(times) ** (1 / len(times))


def _frozen(parameters: tuning.Parameters) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(parameters.items()))
