"""Real rounds of configurations on this machine, run as by `lmi compare`, and step times learned from them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from container.explain.target import this_machine
from container.machine import Machine
from container.measure.bench.workload import BenchError
from container.measure.compare.configurations import (
    BadConfiguration,
    NamedPath,
    preparer,
    read_configurations,
)
from container.measure.compare.derive import derive
from container.measure.compare.plan import Plan
from container.measure.compare.results import Comparison, End
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.selection import tokenizers_for
from container.measure.compare.server_process import ServerFailed, StartServer
from container.measure.simulate.calibration import TooFewSteps, calibrate
from container.measure.simulate.roofline import Roofline
from container.measure.simulate.server import SimulatedServer, read_server
from container.measure.simulate.simulation import simulate
from container.measure.simulate.step_times import ScaledTimes, StepTimes
from container.measure.tune.space import MAX_PROMPT_TOKENS, MAX_SEQUENCES, SearchSpace
from container.progress import ProgressView
from container.run.stop_signals import StopRequested

TimesOf = Callable[[SimulatedServer], StepTimes]
"""Returns the step times of a configuration."""


@dataclass(slots=True)
class RealRuns:
    """Runs configurations under one load, and counts the rounds."""

    plan: Plan
    """Load and seed. The number of rounds is ignored."""
    environ: Mapping[str, str]
    machine: Machine
    tokenizer: Path | None
    """Tokenizer for the prompts of all configurations; None means each configuration's own."""
    start: StartServer
    folder: Path
    """Folder for logs and step traces."""
    view: ProgressView
    num_rounds: int = field(default=0, init=False)
    """Complete rounds of all configurations so far."""

    def run(self, files: Sequence[NamedPath], num_rounds: int, *, traced: bool = False) -> Comparison:
        """Run rounds of each configuration in turn. Configurations that differ only in live settings share a server.

        A server that fails ends the rounds. A stop signal discards them.

        Raises StopRequested and the errors of `read_configurations` and `ComparisonRunner.run`.
        """
        prepare = preparer(self.environ, self.view)
        configs = read_configurations(files, self.environ, self.machine, prepare)
        tokenizers = tokenizers_for(configs, self.tokenizer)
        plan = replace(self.plan, num_rounds=num_rounds)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        traces = folder if traced else None
        runner = ComparisonRunner(configs, plan, tokenizers, self.start, folder, self.view, traces)
        comparison = runner.run()
        if comparison.end is End.INTERRUPTED:
            raise StopRequested
        self.num_rounds += len(comparison.rounds)
        return comparison


def learn_times(
    space: SearchSpace, runs: RealRuns, copies_folder: Path, skip: Callable[[str, Exception], None]
) -> TimesOf:
    """Learn the step times of a space by running two of its points, or one under engine=Python.

    skip: called with the name and the error of a point that cannot be served, if another point takes its place.

    Raises BenchError if the load is too small, ServerFailed if too few requests succeed, and the errors of
    `RealRuns.run` and `calibrate`.
    """
    return (
        _from_trace(space, runs, copies_folder, skip) if space.engine == "MPI" else _from_tokens(space, runs)
    )


def _from_trace(
    space: SearchSpace, runs: RealRuns, copies_folder: Path, skip: Callable[[str, Exception], None]
) -> TimesOf:
    """Fit step times to runs with the smallest and the largest batches.

    If a server with the largest batches does not start, those of the file take their place.
    """

    def point(name: str, choose: Callable[[Sequence[str]], str]) -> NamedPath:
        changes = {key: choose(space.axes[key]) for key in (MAX_SEQUENCES, MAX_PROMPT_TOKENS)}
        return derive(f"{space.origin.name}, {name}".lstrip(", "), space.origin.path, copies_folder, changes)

    smallest = point("smallest batches", lambda values: min(values, key=int))
    largest = point("largest batches", lambda values: max(values, key=int))
    try:
        measured = runs.run([smallest, largest], 1, traced=True)
    except (BadConfiguration, ServerFailed) as error:
        own = point("own batches", lambda values: values[0])
        measured = runs.run([smallest, own], 1, traced=True)
        skip(largest.name, error)
    _require_success(measured, 1)
    try:
        times = calibrate(*map(Path, dict.fromkeys(one.step_trace for one in measured.rounds)))
    except TooFewSteps as error:
        _require_success(measured, measured.rounds[0].metrics.num_requests)
        raise BenchError(
            f"--requests: too few to fit step times {error.counts} usable steps; raise --requests or --output-tokens"
        ) from error
    return lambda server: times


def _from_tokens(space: SearchSpace, runs: RealRuns) -> TimesOf:
    """Scale a roofline to the measured time per token, since engine=Python writes no step trace."""
    target = this_machine(runs.machine)
    server = read_server(space.origin.path, None, target)
    measured = runs.run([space.origin], 1)
    _require_success(measured, 1)
    (scenario,) = runs.plan.scenarios
    seed = runs.plan.round_seed(1)
    predicted = simulate(server, Roofline(server, target), scenario, seed=seed).metrics
    found = ((one.tpot.mean, one.latency.mean) for one in (measured.rounds[0].metrics, predicted))
    factors = [real / simulated for real, simulated in zip(*found, strict=True)]
    # Responses that are not streamed have no time between tokens.
    factor = next((one for one in factors if math.isfinite(one) and one > 0), 1.0)
    source = f"the measured time per token of {space.origin.name}"
    return lambda server: ScaledTimes(Roofline(server, target), factor, source)


def _require_success(comparison: Comparison, least: int) -> None:
    """Raise ServerFailed if a server failed, or if fewer than `least` requests of a round succeeded."""
    if comparison.end is End.SERVER_FAILED:
        raise ServerFailed(comparison.stopped)
    for result in comparison.rounds:
        figures = result.metrics
        if figures.num_requests - figures.num_errors < least:
            failed = f"{figures.num_errors} of {figures.num_requests} requests failed"
            raise ServerFailed(f"{result.configuration}: {failed}: {figures.errors[0].text}")
