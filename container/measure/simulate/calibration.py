"""Step times fitted to a step trace (`option.step_trace`) of the real engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from container.measure.numbers import percent
from container.measure.simulate.server import CannotSimulateError
from container.measure.simulate.step_times import StepSeconds

_Numbers = npt.NDArray[np.float64]
_MIN_STEPS = 50
_HELD_OUT = 5
"""Every fifth step is held out to measure the error of predictions."""
_ROUNDS = 5
_HUBER = 1.345
"""Standard deviations beyond which residuals count less (Huber 1964)."""
_HAS_PROMPTS = 1
"""Feature that is fitted for GPUs only: they launch the kernels of a step with prompts one by one, and replay a CUDA
graph otherwise. On a CPU it would absorb what large chunks cost per token, and make small chunks too slow."""
_MAX_LINE_BYTES = 1 << 24
_WARM_UP = "warm-up"
"""Id of the engine's warm-up request."""


class TooFewSteps(CannotSimulateError):
    """A trace has too few usable steps."""

    def __init__(self, path: str, num_steps: int) -> None:
        self.counts = f"(got {num_steps}); allowed: at least {_MIN_STEPS}"
        super().__init__(f"--calibrate: {path} has too few usable steps {self.counts}")


class _Record(msgspec.Struct):
    """A line of the trace: see `engines/mpi/trace.py`."""

    time: float
    plan: list[tuple[str, int, int]]
    seconds: dict[str, float]
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of the real engine."""

    starts: list[int]
    counts: list[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class CalibratedTimes:
    """Step times, including the host's, as linear functions of `features`."""

    trace: str
    coefficients: tuple[float, ...]
    """Seconds per unit of each feature, not negative."""
    num_fitted: int
    num_held_out: int
    median_error: float
    """Median absolute error of held-out steps, as a share of the measured time."""
    total_error: float
    """Predicted total time of all held-out steps divided by the measured total, minus 1."""

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        """See `StepTimes`."""
        pairs = zip(self.coefficients, features(starts, counts), strict=True)
        return StepSeconds(0.0, sum(seconds * amount for seconds, amount in pairs))

    def describe(self) -> str:
        return (
            f"fitted to {self.num_fitted} steps of {self.trace}; for {self.num_held_out} other steps the median error"
            f" is {percent(self.median_error)}, and their predicted total is {percent(abs(self.total_error))} too"
            f" {'high' if self.total_error > 0 else 'low'}"
        )


def features(starts: Sequence[int], counts: Sequence[int]) -> tuple[float, ...]:
    """Return the features that determine a step's time.

    In order: 1 for the step, 1 if it has prompts, sequences, prompt tokens, tokens whose keys and values are read, and
    query-key pairs of prompts.
    """
    num_seqs, num_tokens = len(counts), sum(counts)
    context = sum(starts) + num_tokens
    if num_tokens == num_seqs:
        return (1, 0, num_seqs, 0, context, 0)
    chunks = [(start, count) for start, count in zip(starts, counts, strict=True) if count > 1]
    prompt_tokens = sum(count for _, count in chunks)
    pairs = sum(count * (start + (count + 1) / 2) for start, count in chunks)
    return (1, 1, num_seqs, prompt_tokens, context, pairs)


def calibrate(*paths: Path) -> CalibratedTimes:
    """Fit step times to the traces of one or more servers.

    Raises CannotSimulateError if a file cannot be read or is not a trace, TooFewSteps if they have too few steps.
    """
    traces, names = list(map(_read, paths)), ", ".join(path.name for path in paths)
    steps = [step for records in traces for step in measured_steps(records)]
    if len(steps) < _MIN_STEPS:
        raise TooFewSteps(", ".join(map(str, paths)), len(steps))
    table = np.array([features(step.starts, step.counts) for step in steps], dtype=np.float64)
    seconds = np.array([step.seconds for step in steps])
    held_out = np.arange(len(steps)) % _HELD_OUT == _HELD_OUT - 1
    fitted = [i for i in range(table.shape[1]) if i != _HAS_PROMPTS or any(map(_device_runs_ahead, traces))]
    coefficients = np.zeros(table.shape[1])
    coefficients[fitted] = fit(table[~held_out][:, fitted], seconds[~held_out])
    predicted, measured = table[held_out] @ coefficients, seconds[held_out]
    return CalibratedTimes(
        trace=names,
        coefficients=tuple(coefficients.tolist()),
        num_fitted=int((~held_out).sum()),
        num_held_out=len(measured),
        median_error=float(np.median(abs(predicted / measured - 1))),
        total_error=float(predicted.sum() / measured.sum() - 1),
    )


def measured_steps(records: Sequence[_Record]) -> Iterator[MeasuredStep]:
    """Yield the steps whose time is known: until the next step starts, or the sum of its parts if none follows.

    If the device runs ahead, the host starts step i + 2 when step i ends, so the time of step
    i is from the start of i + 1 to that of i + 2. The host does not wait for a step of prompts that gives no token, so
    steps without a decode and the steps after them are left out.
    """
    runs_ahead = _device_runs_ahead(records)
    previous_not_waited = False
    for record, begin, end in zip(records, records[runs_ahead:], records[runs_ahead + 1 :], strict=False):
        starts, counts = [start for _, start, _ in record.plan], [count for _, _, count in record.plan]
        goes_on = record.running + record.waiting > 0 and begin.running + begin.waiting > 0
        seconds = end.time - begin.time if goes_on else sum(record.seconds.values())
        is_known = not runs_ahead or (goes_on and not previous_not_waited and 1 in counts)
        previous_not_waited = 1 not in counts
        if is_known and seconds > 0 and all(sequence != _WARM_UP for sequence, _, _ in record.plan):
            yield MeasuredStep(starts, counts, seconds)


def _device_runs_ahead(records: Sequence[_Record]) -> bool:
    """Return whether the device computes a step while the host plans the next one, as GPUs do."""
    return any("wait" in record.seconds for record in records)


def fit(table: _Numbers, seconds: _Numbers) -> _Numbers:
    """Solve non-negative least squares of relative errors, with small weights for outliers.

    table: [num_steps, num_features]; seconds: [num_steps], above 0 -> [num_features].
    """
    relative = table / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1
    weights = np.ones(len(seconds))
    for _ in range(_ROUNDS):
        rows = relative / scale * weights[:, None]
        found = _nonnegative(rows, weights)
        residuals = abs(relative / scale @ found - 1)
        deviation = max(1.4826 * float(np.median(residuals)), 1e-9)
        weights = np.sqrt(np.minimum(1, _HUBER * deviation / np.maximum(residuals, 1e-12)))
    result: _Numbers = found / scale
    return result


def _nonnegative(rows: _Numbers, targets: _Numbers) -> _Numbers:
    """Solve exactly by trying all subsets of features: the best solution is the least-squares one of its support."""
    gram, right = rows.T @ rows, rows.T @ targets
    best, most = np.zeros(len(right)), 0.0
    for size in range(1, len(right) + 1):
        for columns in map(list, itertools.combinations(range(len(right)), size)):
            weights = np.linalg.lstsq(gram[np.ix_(columns, columns)], right[columns], rcond=1e-12)[0]
            if (weights >= 0).all() and weights @ right[columns] > most:
                most = float(weights @ right[columns])
                best = np.zeros(len(right))
                best[columns] = weights
    return best


def _read(path: Path) -> list[_Record]:
    """Read a step trace. Raises CannotSimulateError."""
    decoder = msgspec.json.Decoder(_Record)
    records: list[_Record] = []
    try:
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE_BYTES):
                if records and not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                    break  # the server is still writing the last line
                records.append(decoder.decode(line))
    except OSError as error:
        raise CannotSimulateError(f"--calibrate: cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CannotSimulateError(
            f"--calibrate: {path}, line {len(records) + 1}: not a line of a step trace: {error}; allowed: files"
            " written by option.step_trace"
        ) from error
    return records
