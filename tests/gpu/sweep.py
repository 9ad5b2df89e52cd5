"""Search launch parameters by hill climbing: change one parameter at a time, and keep changes that are faster."""

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
"""A time below this share of the best counts as faster. Smaller differences are noise."""
_SAME = 2e-2
"""Allowed relative error between two ways to compute the same result in 16 bits."""


@dataclass(frozen=True, slots=True)
class Subject:
    operation: str
    key: str
    space: Mapping[str, Sequence[int]]
    """Values to try, by parameter. Other parameters are not changed."""
    make: Callable[[], list[list[Call]]]
    """Returns groups of calls. The search minimises the geometric mean of the groups' times."""
    fits: Callable[[tuning.Parameters], bool] = lambda parameters: True
    """Whether the kernel supports the parameters."""


@dataclass(frozen=True, slots=True)
class Found:
    parameters: tuning.Parameters
    before: float
    after: float
    """Seconds, like `before`."""
    tried: int
    wrong: tuple[str, ...] = ()
    """Parameters with wrong results, because of an error in the kernel or in the compiler."""


def climb(subject: Subject, device: torch.device, deadline: Deadline, repeats: int) -> Found:
    """Search the fastest parameters, starting with those in use.

    Raises:
        RuntimeError: the kernel cannot be launched with the parameters in use.
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
    """Launch kernels with these parameters inside the context."""
    # All launchers read this table, directly or through an imported function.
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
    """Return the seconds; infinity if the kernel cannot be launched, NaN if its result is wrong."""
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
            # Too much shared memory, or parameters that the compiler rejects: the search goes on.
            print(f"    {subject.operation}, {subject.key}: {parameters}: {type(error).__name__}", flush=True)
            return math.inf


def _seconds(groups: Sequence[Sequence[Call]], device: torch.device, repeats: int) -> float:
    times = [time_graph(calls, device, repeats).median for calls in groups]
    return math.prod(times) ** (1 / len(times))


def _frozen(parameters: tuning.Parameters) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(parameters.items()))
