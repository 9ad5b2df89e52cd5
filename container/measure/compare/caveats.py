"""Caveats of a comparison: limits of its figures that a reader must know."""

from __future__ import annotations

from container.measure.compare.configurations import warnings
from container.measure.compare.results import Comparison, End


def caveats(comparison: Comparison) -> tuple[str, ...]:
    """Return the caveats as sentences, most serious first."""
    return (
        *_early_end(comparison),
        *_failures(comparison),
        *warnings(comparison.configs),
        *_client_limited(comparison),
        *_engines(comparison),
        *_running(comparison),
        "The client shared its cores with the servers that ran on this machine.",
    )


def _early_end(comparison: Comparison) -> list[str]:
    match comparison.end:
        case End.AS_PLANNED:
            return []
        case End.INTERRUPTED:
            rounds = (
                "1 complete round"
                if comparison.num_rounds == 1
                else f"{comparison.num_rounds} complete rounds"
            )
            return [f"A stop signal ended the comparison after {rounds}."]
        case End.SERVER_FAILED:
            reason = comparison.stopped.splitlines()[0]  # without the end of the log
            return [f"A server failed, so no further round counts: {reason}"]


def _failures(comparison: Comparison) -> list[str]:
    return [
        f"{error.count} of {result.metrics.num_requests} requests failed: {result.configuration},"
        f" {result.scenario}, round {result.round}: {error.text}"
        for result in comparison.rounds
        for error in result.metrics.errors
    ]


def _client_limited(comparison: Comparison) -> list[str]:
    """Return one sentence for each configuration and scenario in which the client was the bottleneck."""
    limited = [result for result in comparison.rounds if result.metrics.client_limited]
    first = {(one.configuration, one.scenario): one for one in reversed(limited)}
    return [
        f"{one.configuration}, {one.scenario}, round {one.round}: {one.metrics.client_limited}."
        for one in limited
        if first[one.configuration, one.scenario] is one
    ]


def _running(comparison: Comparison) -> list[str]:
    names = [config.name for config in comparison.configs if config.url]
    if not names:
        return []
    foreign = [config.name for config in comparison.configs if config.url and not config.engine]
    return [
        f"{', '.join(names)}: already running, also while other configurations were measured. Other clients may have"
        " used the server; its memory and start-up time were not measured.",
        *(
            f"{name}: a server of another kind may have kept the prompts of an earlier run in a prefix cache. Give each"
            " run another --seed."
            for name in foreign
        ),
    ]


def _engines(comparison: Comparison) -> list[str]:
    if len({config.engine for config in comparison.configs}) < 2:
        return []
    return [
        "A batch of engine=Python is a set of requests that runs until all are complete; a batch of engine=MPI is"
        " one step, so each sequence is counted once per step. The two mean batch sizes cannot be compared."
    ]
