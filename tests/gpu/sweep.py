"""Search for launch parameters by hill climbing: change one parameter at a time, and keep changes that are faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lmi_kernels import tuning
from tests.gpu.kv import relative_error
from tests.gpu.timing import Call, Deadline, time_graph

_FASTER = 0.99
"""A time below this share of the best counts as faster. Smaller differences are noise."""
_TOLERANCE = 2e-2
"""Allowed relative error between two ways to compute the same result in 16 bits."""


@dataclass(frozen=True, slots=True)
class Search:
    """Parameters to search for one kernel and tuning key."""

    operation: str
    key: str
    space: Mapping[str, Sequence[int]]
    """Values to try, by parameter. Other parameters are not changed."""
    make_calls: Callable[[], list[list[Call]]]
    """Return groups of calls. The search minimizes the geometric mean of the groups' times."""
    supports: Callable[[tuning.Parameters], bool] = lambda parameters: True
    """Whether the kernel supports the parameters."""

    def log(self, text: str) -> None:
        print(f"    {self.operation}, {self.key}: {text}", flush=True)


@dataclass(frozen=True, slots=True)
class SearchResult:
    parameters: tuning.Parameters
    before: float
    after: float
    """Seconds, like `before`."""
    num_tried: int
    incorrect: tuple[str, ...] = ()
    """Parameters with wrong results, because of an error in the kernel or in the compiler."""


def climb(search: Search, device: torch.device, deadline: Deadline, repeats: int) -> SearchResult:
    """Search for the fastest parameters, starting with those in use.

    Raises:
        RuntimeError: the kernel cannot be launched with the parameters in use.
    """
    groups = search.make_calls()
    best = dict(tuning.parameters(search.operation, search.key, device))
    with override(search, best, device):
        expected = groups[0][0]()
        before = after = _seconds(groups, device, repeats)
    seen = {_frozen(best)}
    incorrect: list[str] = []
    improved = True
    while improved and not deadline.passed:
        improved = False
        for name, values in search.space.items():
            for value in values:
                tried = best | {name: value}
                if (
                    name not in best
                    or _frozen(tried) in seen
                    or deadline.passed
                    or not search.supports(tried)
                ):
                    continue
                seen.add(_frozen(tried))
                seconds = _try(search, tried, device, groups, expected, repeats)
                if math.isnan(seconds):
                    incorrect.append(str(tried))
                if seconds < _FASTER * after:
                    best, after, improved = tried, seconds, True
                    search.log(f"{seconds * 1e6:.1f} us with {best}")
    return SearchResult(best, before, after, len(seen), tuple(incorrect))


@contextmanager
def override(search: Search, parameters: tuning.Parameters, device: torch.device) -> Iterator[None]:
    """Launch kernels with these parameters inside the context."""
    # All launchers read this table, directly or through an imported function.
    table = tuning._table(tuning.tables(device)[0]).setdefault(search.operation, {})
    original = table.get(search.key)
    table[search.key] = parameters
    try:
        yield
    finally:
        if original is None:
            del table[search.key]
        else:
            table[search.key] = original


def _try(
    search: Search,
    parameters: tuning.Parameters,
    device: torch.device,
    groups: Sequence[Sequence[Call]],
    expected: object,
    repeats: int,
) -> float:
    """Return the seconds; infinity if the kernel cannot be launched, NaN if its result is wrong."""
    with override(search, parameters, device):
        try:
            result = groups[0][0]()
            if not isinstance(result, torch.Tensor) or not isinstance(expected, torch.Tensor):
                raise TypeError("calls must return a tensor")
            error = relative_error(result, expected.double())
            if error > _TOLERANCE:
                search.log(f"{parameters}: wrong result, relative error {error:.1e}")
                return math.nan
            return _seconds(groups, device, repeats)
        except Exception as error:
            # Too much shared memory, or parameters that the compiler rejects: the search continues.
            search.log(f"{parameters}: {type(error).__name__}")
            return math.inf


def _seconds(groups: Sequence[Sequence[Call]], device: torch.device, repeats: int) -> float:
    times = [time_graph(calls, device, repeats).median for calls in groups]
    return math.prod(times) ** (1 / len(times))


def _frozen(parameters: tuning.Parameters) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(parameters.items()))
