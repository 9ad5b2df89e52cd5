"""Tune a configuration: simulate candidates, run the best ones, choose."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from container.explain import check as checking
from container.explain.resolve import CannotServe
from container.explain.target import ServingTarget
from container.measure.bench.workload import BenchError
from container.measure.compare.configurations import BadConfiguration, NamedPath
from container.measure.compare.derive import derive
from container.measure.compare.interval import Ratio
from container.measure.compare.plan import Plan
from container.measure.compare.results import Comparison
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.selection import point_name
from container.measure.compare.server_process import ServerFailed
from container.measure.compare.summary import over_rounds, ratio
from container.measure.simulate.server import CannotSimulateError, read_server
from container.measure.simulate.simulation import simulate
from container.measure.tune.goal import ERRORS, Goal
from container.measure.tune.real_runs import TimesOf
from container.measure.tune.search import WORST, Proposal, Rank, best_alike, pareto, search
from container.measure.tune.space import Point, SearchSpace, search_spaces
from container.models import files as model_files
from container.progress import ProgressView
from lmi_server.config import ModelSource
from lmi_server.properties import loader
from lmi_server.properties.problems import PropertiesError

_REFUSALS = (PropertiesError, CannotServe, CannotSimulateError)


@dataclass(slots=True)
class Explorer:
    """Simulates the configurations of a file's search spaces, and keeps the results."""

    file: NamedPath
    plan: Plan
    """The load: its first scenario, with the seed of its first round."""
    goal: Goal
    target: ServingTarget
    model: Path | None
    """A folder with the model's config.json; None if the model is on this disk."""
    environ: Mapping[str, str]
    copies_folder: Path
    """Folder for copies of the file."""
    view: ProgressView
    spaces: list[SearchSpace] = field(default_factory=list, init=False)
    proposals: list[Proposal] = field(default_factory=list, init=False)
    """Simulated configurations, the original file first."""
    step_times: dict[str, str] = field(default_factory=dict, init=False)
    """Source of each space's step times, by the name of its origin."""
    skipped: dict[str, str] = field(default_factory=dict, init=False)
    """First configuration that cannot be served or simulated, by reason."""

    def explore(
        self, settings: Mapping[str, Sequence[str]], times_of: Callable[[SearchSpace], TimesOf], most: int
    ) -> None:
        """Simulate at most `most` configurations, equally many of each space.

        settings: from `space.read_settings`. Raises the errors of `read_server` and `times_of` for the file itself.
        """
        self.spaces += search_spaces(self.file, settings, self.copies_folder, self._effective)
        for space in self.spaces:
            try:
                server = read_server(space.origin.path, self.model, self.target)
                times = times_of(space)
                self.step_times[space.origin.name] = times(server).describe()
                self._explore(space, times, max(1, most // len(self.spaces)))
            except (*_REFUSALS, BadConfiguration, ServerFailed, NoMetrics, BenchError) as error:
                if not space.origin_changes:
                    raise
                self.skip(space.origin.name, error)

    def _effective(self, path: Path) -> dict[str, str]:
        """Return the values of a file, or none if it is invalid. Raises PropertiesError for the user's own file."""
        try:
            loader.load(path, self.environ)
        except PropertiesError as error:
            if path == self.file.path:
                raise
            self.skip(path.name, error)
            return {}

        def locate(source: ModelSource) -> Path | None:
            return self.model or model_files.locate(source)

        report = checking.check(path, self.environ, self.target, locate)
        return {value.key: value.value for value in report.values}

    def _explore(self, space: SearchSpace, times: TimesOf, most: int) -> None:
        done, total = 0, min(most, space.num_points)

        def rank(point: Point) -> Rank:
            nonlocal done
            done += 1
            self.view.update(done, total)
            changes = space.changes(point)
            file = space.origin
            if point != space.start:
                file = derive(
                    point_name(changes, self.file.name), self.file.path, self.copies_folder, changes
                )
            try:
                proposal = self._predict(file, changes, space.engine, times)
            except _REFUSALS as error:
                if not changes:
                    raise
                self.skip(file.name, error)
                return WORST
            self.proposals.append(proposal)
            return self.goal.rank(proposal.values)

        self.view.start(f"{space.origin.name}: simulating {total} of {space.num_points} configurations")
        try:
            search(tuple(space.axes.values()), space.start, rank, most, self.plan.seed)
        finally:
            self.view.finish()

    def _predict(self, file: NamedPath, changes: dict[str, str], engine: str, times: TimesOf) -> Proposal:
        server = read_server(file.path, self.model, self.target)
        if server.engine.engine != engine:
            raise CannotSimulateError(f"it would be served by engine={server.engine.engine}")
        plan = self.plan
        found = simulate(
            server,
            times(server),
            plan.scenarios[0],
            seed=plan.round_seed(1),
            timeout=plan.timeout_seconds,
            slo=plan.slo,
        )
        return Proposal(file, changes, found.metrics, self.goal.values(found.metrics))

    def skip(self, name: str, error: Exception) -> None:
        """Record a configuration that cannot be served or simulated."""
        reasons = [problem.reason for problem in error.problems] if isinstance(error, PropertiesError) else []
        first_line = str(error).partition("\n")[0]  # without the end of a server's log
        self.skipped.setdefault("; ".join(reasons) or first_line, name)


@dataclass(frozen=True)
class Tuning:
    """The result: what was simulated, what was run, and which configuration is the best."""

    explored: Explorer
    comparison: Comparison | None
    """Real rounds of the original file and of the best others; None if none was completed."""
    num_rounds: int
    """Real rounds of all configurations, including those that step times are learned from."""
    failure: str = ""
    """Why a server failed in the real rounds; empty if none did."""

    @property
    def goal(self) -> Goal:
        return self.explored.goal

    @property
    def baseline(self) -> Proposal:
        """The original file."""
        return self.explored.proposals[0]

    @functools.cached_property
    def candidates(self) -> list[Proposal]:
        """Proposals that were run, or all if nothing was run; the best first."""
        found = list(self.explored.proposals)
        if self.comparison is not None:
            names = [config.name for config in self.comparison.configs]
            found = [one for one in found if one.name in names]
        ratios = {one.name: self.ratio(one) for one in found if one is not self.baseline}

        def rank(one: Proposal) -> Rank:
            """Rank by the ratio of paired rounds if all proposals have one."""
            excess, objective = self.goal.rank(self.values(one))
            if None not in ratios.values():
                seen = ratios.get(one.name)
                value = seen.value if seen else 1.0
                objective = -value if self.goal.objective.higher_is_better else value
            return excess, objective

        return sorted(found, key=rank)

    @functools.cached_property
    def best(self) -> Proposal:
        return self.candidates[0] if self.comparison else best_alike(self.candidates, self.goal)[0]

    @functools.cached_property
    def pareto_set(self) -> list[Proposal]:
        """Pareto-optimal proposals by predicted figures."""
        return pareto(self.explored.proposals, self.goal)

    def values(self, proposal: Proposal) -> dict[str, float]:
        """Return the figures of the goal: predicted ones if nothing was run.

        Otherwise medians of the rounds, and the share of failed requests in all rounds together.
        """
        comparison = self.comparison
        if comparison is None:
            return proposal.values
        scenario = comparison.plan.scenarios[0].name
        medians = {
            one.key: over_rounds(comparison, proposal.name, scenario, one) for one in self.goal.measures
        }
        rounds = [result.metrics for result in comparison.of(proposal.name, scenario)]
        failed = sum(one.num_errors for one in rounds) / sum(one.num_requests for one in rounds)
        return {key: found.value if found else math.nan for key, found in medians.items()} | {ERRORS: failed}

    def ratio(self, proposal: Proposal) -> Ratio | None:
        """Return the objective divided by that of the original file.

        None for the original file, if nothing was run, and if either has no figure above 0 in some round.
        """
        comparison = self.comparison
        if comparison is None or proposal is self.baseline:
            return None
        scenario = comparison.plan.scenarios[0].name
        found = ratio(
            comparison, proposal.name, self.baseline.name, scenario, self.goal.objective, num_measures=1
        )
        return found if found and found.count == comparison.num_rounds else None

    @property
    def goal_is_met(self) -> bool:
        """Whether the best configuration keeps all limits."""
        excess, objective = self.goal.rank(self.values(self.best))
        return not excess and math.isfinite(objective)
