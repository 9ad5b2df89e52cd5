"""The --goal of `lmi tune`: parsing, limits, ranking and errors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.bench.workload import BenchError
from container.measure.tune.goal import METRICS, Limit, parse_goal
from tests.container.measure.compare.made_up import make_figures

_BOUNDS = {"s": "ms", "%": "%", "/s": ""}


@st.composite
def clauses(draw: st.DrawFn) -> str:
    """A limit in upper or lower case, with any number of blanks."""
    measure = draw(st.sampled_from(sorted(METRICS.values(), key=lambda one: one.key)))
    relation = draw(st.sampled_from((">", ">=") if measure.higher_is_better else ("<", "<=")))
    bound = f"{draw(st.integers(1, 99))}{draw(st.sampled_from(('', ' ')))}{_BOUNDS[measure.unit]}"
    blank = draw(st.sampled_from(("", " ", "  ")))
    text = f"{blank}{measure.key}{blank}{relation}{blank}{bound}{blank}"
    return text.upper() if draw(st.booleans()) else text


@given(
    limits=st.lists(clauses(), max_size=4), position=st.integers(0, 4), name=st.sampled_from(sorted(METRICS))
)
def test_a_printed_goal_parses_to_the_same_goal(limits: list[str], position: int, name: str) -> None:
    measure = METRICS["tokens/s" if name == "errors" else name]
    objective = f"{'max' if measure.higher_is_better else 'min'} {measure.key}"
    goal = parse_goal(",".join([*limits[:position], objective, *limits[position:]]))
    assert goal.objective == measure
    assert parse_goal(str(goal)) == goal
    # Without a limit on errors, no request may fail.
    assert len(goal.limits) == len(limits) + all("ERRORS" not in text.upper() for text in limits)
    assert len({one.key for one in goal.measures}) == len(goal.measures) >= 2


def test_limits_are_converted_to_base_units() -> None:
    goal = parse_goal("p95 ttft < 500ms, p90 tpot<=0.05 s, errors < 1%, requests/s >= 2, max goodput")
    assert [(one.measure.key, one.relation, one.bound) for one in goal.limits] == [
        ("p95 ttft", "<", 0.5),
        ("p90 tpot", "<=", 0.05),
        ("errors", "<", 0.01),
        ("requests/s", ">=", 2.0),
    ]
    assert [one.key for one in goal.measures] == ["goodput", "p95 ttft", "p90 tpot", "requests/s"]
    assert [one.key for one in parse_goal("max tokens/s").measures] == ["tokens/s", "p95 latency"]
    assert [one.key for one in parse_goal("min p95 latency").measures] == ["p95 latency", "tokens/s"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "p95 ttfd < 1s, max tokens/s",
            r"unknown metric \(got p95 ttfd\); did you mean p95 ttft\?; allowed: tok",
        ),
        ("max token/s", r"did you mean tokens/s\?"),
        ("ttft < 1s, max tokens/s", "did you mean .* ttft"),
        ("p95 ttft < 500, max tokens/s", r"p95 ttft: not a valid bound \(got 500\); allowed: a time above 0"),
        ("p95 ttft < 0ms, max tokens/s", "not a valid bound"),
        ("errors < 1, max tokens/s", r"errors: not a valid bound \(got 1\); allowed: a share, such as 1%"),
        ("errors < 0%, max tokens/s", "not a valid bound"),
        ("tokens/s > 1%, max tokens/s", "not a valid bound"),
        ("p95 ttft > 1s, max tokens/s", "wrong direction .*; allowed: p95 ttft < or <="),
        ("max p95 latency", r"unknown objective \(got max p95 latency\); allowed: min p95 latency"),
        ("min errors", "allowed: errors < 1%"),
        ("p95 ttft < 1s", "one objective is required, not 0"),
        ("max tokens/s, max goodput", "one objective is required, not 2"),
        ("fast please", r"not a limit or an objective \(got fast please\)"),
        ("", "not a limit or an objective"),
    ],
)
def test_an_invalid_goal_is_refused(text: str, message: str) -> None:
    with pytest.raises(BenchError, match=f"--goal: .*{message}"):
        parse_goal(text)


def test_excess_is_the_share_by_which_a_limit_is_missed() -> None:
    below, above = Limit(METRICS["p95 ttft"], "<", 0.5), Limit(METRICS["tokens/s"], ">=", 100.0)
    assert [below.excess(value) for value in (0.4, 0.62, math.nan)] == [0.0, pytest.approx(0.24), math.inf]
    assert below.excess(0.5) > 0
    assert [above.excess(value) for value in (100.0, 75.0)] == [0.0, 0.25]
    assert Limit(METRICS["errors"], "<=", 0.0).excess(0.1) == pytest.approx(0.1)


def test_configurations_within_the_limits_rank_first_then_the_closest() -> None:
    goal = parse_goal("p95 latency < 2s, max tokens/s")

    def rank(tokens: float, latency: float, *errors: str) -> tuple[float, float]:
        return goal.rank(goal.values(make_figures(tokens, latency, errors)))

    ordered = [rank(90, 1.0), rank(80, 1.9), rank(100, 2.5), rank(500, 1.0, "full"), rank(300, 4.0)]
    assert ordered == sorted(ordered)
    assert goal.rank({"tokens/s": math.nan, "p95 latency": 1.0, "errors": 0.0}) == (0.0, math.inf)
