"""The best of the configurations that were run, and the sentences about it."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from container.explain.target import this_machine
from container.measure.bench.figures import Figures
from container.measure.bench.workload import BenchError
from container.measure.compare.configurations import NamedPath
from container.measure.compare.plan import Plan
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import ServerFailed
from container.measure.tune.goal import parse_goal
from container.measure.tune.real_runs import TimesOf
from container.measure.tune.report import effect, section, sentences
from container.measure.tune.search import Proposal
from container.measure.tune.space import SearchSpace
from container.measure.tune.tuning import Explorer, Tuning
from container.progress import LogLines
from tests.container.measure.compare.made_up import (
    MACHINE,
    SCENARIO,
    make_comparison,
    make_configuration,
    make_figures,
    make_round,
    write_model,
    write_properties,
)
from tests.container.measure.simulate.made_up import Times

FILE = "file"


def make_tuning(goal_text: str, rounds: Mapping[str, Sequence[Figures]]) -> Tuning:
    """`rounds`: figures of the rounds by configuration. All predictions are equal."""
    goal, plan = parse_goal(goal_text), Plan((SCENARIO,), 1, 0)
    file, view = NamedPath(FILE, Path(FILE)), LogLines(io.StringIO())
    explorer = Explorer(file, plan, goal, this_machine(MACHINE), None, {}, Path(), view)
    predicted = make_figures()
    explorer.proposals += [
        Proposal(
            NamedPath(name, Path()), {} if name == FILE else {"a": name}, predicted, goal.values(predicted)
        )
        for name in rounds
    ]
    results = [
        make_round(name, number, figures)
        for name, figures_by_round in rounds.items()
        for number, figures in enumerate(figures_by_round, start=1)
    ]
    comparison = make_comparison([make_configuration(name) for name in rounds], results)
    return Tuning(explorer, comparison, len(results))


def goodputs(*values: float) -> list[Figures]:
    return [replace(make_figures(), goodput=value) for value in values]


def test_a_file_without_goodput_loses_to_one_that_has_some() -> None:
    tuning = make_tuning("max goodput", {FILE: goodputs(0, 0, 0), "other": goodputs(2, 2, 2)})
    assert tuning.best.name == "other"
    assert effect(tuning) == "goodput 2.00 instead of 0 (measured)"
    assert sentences(tuning)[0] == (
        "other is the best of the 2 configurations that were run: goodput 2.00 instead of 0 (measured)."
    )


def test_rounds_without_goodput_count_against_a_configuration() -> None:
    rounds = {FILE: goodputs(1, 1, 1, 1, 1), "lucky": goodputs(0, 0, 0, 9, 9), "steady": goodputs(*[1.5] * 5)}
    tuning = make_tuning("max goodput", rounds)
    assert [one.name for one in tuning.candidates] == ["steady", FILE, "lucky"]
    # A ratio requires a figure above 0 in every round.
    assert [tuning.ratio(one) is None for one in tuning.candidates] == [False, True, True]


def test_a_goal_is_not_met_without_any_goodput() -> None:
    tuning = make_tuning("max goodput", {FILE: goodputs(0, 0), "other": goodputs(0, 0)})
    assert not tuning.goal_is_met
    assert "None of the 2 configurations that were run meets the goal" in sentences(tuning)[0]
    assert sentences(tuning)[0].endswith("which has no goodput.")


def test_a_goal_is_not_met_if_the_file_lacks_a_figure() -> None:
    failed = make_figures(0.0, math.nan, errors=("full", "full"))
    tuning = make_tuning("errors <= 100%, min p95 latency", {FILE: [failed, failed]})
    assert not tuning.goal_is_met
    assert sentences(tuning)[0].endswith("which has no p95 latency.")


@pytest.mark.parametrize(
    "error",
    [
        NoMetrics("cannot read /metrics"),
        BenchError("--requests: too few"),
        ServerFailed(
            "kv_cache_gb=0.2: the server exited with code 1\nEnd of its log, /tmp/x.log:\n  out of memory"
        ),
    ],
    ids=["no metrics", "load", "server"],
)
def test_a_space_whose_step_times_cannot_be_learned_is_skipped(
    error: Exception, tmp_path: Path, copies: Path
) -> None:
    folder = write_properties(write_model(tmp_path / FILE), "engine=MPI", "option.kv_cache_gb=0.1")
    goal, plan, file = parse_goal("max tokens/s"), Plan((SCENARIO,), 1, 0), NamedPath(FILE, folder)
    target, view = this_machine(MACHINE), LogLines(io.StringIO())
    explorer = Explorer(file, plan, goal, target, folder, {}, copies, view)

    def times_of(space: SearchSpace) -> TimesOf:
        if space.origin_changes:
            raise error
        return lambda server: Times()

    explorer.explore({"option.kv_cache_gb": ["0.2"]}, times_of, 1)
    assert [one.name for one in explorer.proposals] == [FILE]
    assert explorer.skipped == {str(error).splitlines()[0]: "kv_cache_gb=0.2"}


@pytest.mark.parametrize(
    ("limit", "is_met"), [("", False), ("errors < 5%, ", True), ("errors < 4%, ", False)]
)
def test_the_error_limit_applies_to_all_rounds_together(limit: str, is_met: bool) -> None:
    """One of ten requests fails in two of five rounds."""
    failed = replace(make_figures(), num_requests=10, num_errors=1)
    fine = replace(make_figures(), num_requests=10)
    tuning = make_tuning(f"{limit}max tokens/s", {FILE: [fine, fine, fine, failed, failed]})
    assert tuning.values(tuning.baseline)["errors"] == 0.04
    assert tuning.goal_is_met == is_met
    [table] = section(tuning).tables
    [row] = table.rows
    assert (row[table.header.index("limits")] == "met") == is_met
