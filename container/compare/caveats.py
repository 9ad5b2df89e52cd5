"""What a reader must know before believing a comparison's figures."""

from __future__ import annotations

from container.compare.arms import warnings
from container.compare.results import Comparison
from container.compare.summary import LATENCY_P90, TOKENS_PER_SECOND, ratio


def caveats(comparison: Comparison) -> tuple[str, ...]:
    """Sentences, the gravest first."""
    return (
        *_failures(comparison),
        *warnings(comparison.arms),
        *_not_established(comparison),
        *_client_limited(comparison),
        *_engines(comparison),
        "The client ran on the same machine and shared its cores with the server.",
    )


def _failures(comparison: Comparison) -> list[str]:
    found = []
    for result in comparison.rounds:
        for error in result.figures.errors:
            found.append(
                f"{error.count} of {result.figures.num_requests} requests failed: {result.arm}, {result.scenario},"
                f" round {result.round}: {error.text}"
            )
    if found:
        found.insert(
            0,
            "Requests failed, so the figures of their rounds say less than they seem to: only answered"
            " requests count in them.",
        )
    return found


def _not_established(comparison: Comparison) -> list[str]:
    """A difference that the rounds do not show."""
    if comparison.plan.num_rounds == 1:
        return [
            "One round was run: how far its figures would vary is not known, so no difference is established."
        ]
    base, *others = [arm.name for arm in comparison.arms]
    found = []
    for scenario in comparison.plan.scenarios:
        for measure in (TOKENS_PER_SECOND, LATENCY_P90):
            for name in others:
                seen = ratio(comparison, name, base, scenario.name, measure)
                if seen is not None and not seen.established:
                    found.append(
                        f"Not established: {measure.title} of {name} and {base} in {scenario.name}. The ratio is"
                        f" {seen.value:.2f}, but from {seen.low:.2f} to {seen.high:.2f} over the rounds, a spread"
                        " larger than its distance from 1."
                    )
    return found


def _client_limited(comparison: Comparison) -> list[str]:
    """One sentence for each arm and scenario that it happened to."""
    found: dict[tuple[str, str], str] = {}
    for result in comparison.rounds:
        if result.figures.client_limited:
            found.setdefault(
                (result.arm, result.scenario),
                f"{result.arm}, {result.scenario}, round {result.round}: {result.figures.client_limited}.",
            )
    return list(found.values())


def _engines(comparison: Comparison) -> list[str]:
    if len({arm.engine for arm in comparison.arms}) < 2:
        return []
    return [
        "A batch of engine=Python is a set of requests that runs to its end; a batch of engine=MPI is one step, in"
        " which each sequence is counted again. The two mean sizes are not the same kind of number."
    ]
