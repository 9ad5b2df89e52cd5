"""Report of `lmi tune`: a table, sentences, JSON, and the comments of the tuned file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from container.measure.compare import report as compare_report
from container.measure.compare.caveats import caveats
from container.measure.compare.report import Provenance
from container.measure.compare.summary import times
from container.measure.compare.verdict import in_words
from container.measure.numbers import percent
from container.measure.output import Table
from container.measure.sections import Section
from container.measure.tune.goal import format_value
from container.measure.tune.search import Proposal
from container.measure.tune.tuning import Tuning

_WRONG = 0.15
"""Relative error above which a prediction is reported as wrong."""


def section(tuning: Tuning) -> Section:
    """Return the table of configurations and the verdict."""
    return Section("Tuning", tables=(_table(tuning),), bullets=tuple(sentences(tuning)))


def _table(tuning: Tuning) -> Table:
    """Return predicted and measured figures of the configurations that were run, then of the rest of the Pareto set."""
    goal, best = tuning.goal, tuning.pareto_set
    run = tuning.candidates if tuning.comparison else []

    def row(one: Proposal) -> tuple[str, ...]:
        measured = tuning.values(one) if one in run else {}
        both = (one.values, measured)
        cells = [
            format_value(measure, values.get(measure.key, math.nan))
            for measure in goal.measures
            for values in both
        ]
        ratio = tuning.ratio(one) if one in run else None
        limits = _missed(tuning, measured or one.values) or "met"
        return (_name(one), *cells, times(ratio), limits, "yes" if one in best else "")

    rows = tuple(map(row, [*run, *(other for other in best if other not in run)]))
    figures = (text for one in goal.measures for text in (f"{one.title}: predicted", "measured"))
    header = (
        "configuration",
        *figures,
        f"{goal.objective.title}: ratio to the original",
        "limits",
        "Pareto set",
    )
    return Table(f"{goal}: {tuning.explored.plan.scenarios[0].describe()}", header, rows)


def _name(one: Proposal) -> str:
    return one.name if one.changes else f"{one.name} (unchanged)"


def _missed(tuning: Tuning, values: Mapping[str, float]) -> str:
    """Return the limits that are missed, and by how much."""
    found = ((limit, limit.excess(values[limit.measure.key])) for limit in tuning.goal.limits)
    return ", ".join(f"misses {limit} by {percent(excess)}" for limit, excess in found if excess)


def sentences(tuning: Tuning) -> list[str]:
    """Return the findings as sentences, the verdict first."""
    explored, comparison = tuning.explored, tuning.comparison
    num_points = sum(space.num_points for space in explored.spaces)
    count = len(explored.proposals)
    counts = f"{count} of {num_points} configurations were simulated; {tuning.num_rounds} rounds were run."
    origin = f"Step times: {'; '.join(dict.fromkeys(explored.step_times.values()))}."
    return [
        _verdict(tuning),
        *(_wrong_predictions(tuning) if comparison else [_predicted_only(tuning.failure)]),
        counts,
        origin,
        *(f"{name} was left out: {reason}." for reason, name in explored.skipped.items()),
        *(caveats(comparison) if comparison else ()),
    ]


def _verdict(tuning: Tuning) -> str:
    best, base, goal = tuning.best, tuning.baseline, tuning.goal
    name = _name(best)
    candidates = (
        f"the {len(tuning.candidates)} configurations that were {'run' if tuning.comparison else 'simulated'}"
    )
    if not tuning.goal_is_met:
        missed = _missed(tuning, tuning.values(best)) or f"has no {goal.objective.title}"
        return f"None of {candidates} meets the goal. The closest is {name}, which {missed}."
    if best is base:
        return f"The file needs no change: it is the best of {candidates}."
    seen = tuning.ratio(best)
    if seen is None:
        return f"{name} is the best of {candidates}: {effect(tuning)}."
    verdict = in_words(seen, best.name, base.name, goal.objective)
    return f"{name} is the best of {candidates}: {goal.objective.title}: {verdict}."


def _predicted_only(failure: str) -> str:
    if not failure:
        return "All figures are predicted."
    reason = failure.partition("\n")[0]  # without the end of the log
    return f"A server failed in the first round, so all figures are predicted: {reason}"


def _wrong_predictions(tuning: Tuning) -> Iterator[str]:
    """Yield the disagreements between simulation and real rounds."""
    candidates, goal = tuning.candidates, tuning.goal
    predicted_best = min(candidates, key=lambda one: goal.rank(one.values))
    if predicted_best is not tuning.best:
        yield f"The simulation predicted another best configuration: {_name(predicted_best)}."
    for one in candidates:
        measured = tuning.values(one)
        pairs = ((measure, one.values[measure.key], measured[measure.key]) for measure in goal.measures)
        wrong = [
            f"{measure.title} {format_value(measure, predicted)} predicted, {format_value(measure, real)} measured"
            for measure, predicted, real in pairs
            if real and abs(predicted / real - 1) > _WRONG
        ]
        if wrong:
            yield f"The simulation was wrong about {_name(one)}: {'; '.join(wrong)}."


def effect(tuning: Tuning) -> str:
    """Return the gain of the best configuration over the original file, such as `tokens/s +23.0 % [18.1, 28.3]`."""
    measure, found = tuning.goal.objective, tuning.ratio(tuning.best)
    key = measure.key
    if found is None:
        after, before = (
            format_value(measure, tuning.values(one)[key]) for one in (tuning.best, tuning.baseline)
        )
        return f"{key} {after} instead of {before} ({'measured' if tuning.comparison else 'predicted'})"
    rounds = f"{found.count} round{'s' if found.count > 1 else ''}"
    if not found.differs:
        return f"{key} {_gain(found.value)} % over the original file ({rounds}: too few to be certain)"
    interval = f"[{_gain(found.low)}, {_gain(found.high)}]"
    return f"{key} {_gain(found.value)} % {interval} over the original file (95 % interval, {rounds})"


def _gain(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def heading(tuning: Tuning, provenance: Provenance) -> list[str]:
    """Return the comments at the beginning of the tuned file."""
    values = tuning.values(tuning.best)
    figures = ", ".join(f"{one.title} {format_value(one, values[one.key])}" for one in tuning.goal.measures)
    comparison = tuning.comparison
    target = tuning.explored.target
    how = f"measured (rounds: {comparison.num_rounds})" if comparison else "predicted"
    return [
        f"lmi tune, {provenance.when}: {tuning.goal}",
        f"load: {tuning.explored.plan.scenarios[0].describe()}",
        f"machine: {target.description if target.named else provenance.machine}",
        f"{how}: {figures}",
        *(["The effect below is of all changes together."] if len(tuning.best.changes) > 1 else []),
    ]


def json_values(tuning: Tuning, provenance: Provenance, written: Section) -> dict[str, Any]:
    """Return all results for `container.measure.output.publish`. Times are in seconds, unknown values null.

    written: the result of `section`.
    """
    goal, explored, comparison = tuning.goal, tuning.explored, tuning.comparison
    best, run = tuning.pareto_set, tuning.candidates if comparison else []
    return {
        "setting": provenance,
        "goal": str(goal),
        "plan": explored.plan,
        "goal_is_met": tuning.goal_is_met,
        "best": tuning.best.name,
        "effect": effect(tuning),
        "sentences": written.bullets,
        "num_points": sum(space.num_points for space in explored.spaces),
        "num_rounds": tuning.num_rounds,
        "axes": [space.axes for space in explored.spaces],
        "configurations": [
            {
                "name": one.name,
                "changes": one.changes,
                "predicted": one.values,
                "metrics": one.metrics,
                "measured": tuning.values(one) if one in run else None,
                "ratio_to_file": tuning.ratio(one) if one in run else None,
                "in_pareto_set": one in best,
            }
            for one in explored.proposals
        ],
        "verification": comparison and compare_report.json_values(comparison, provenance, [written]),
    }
