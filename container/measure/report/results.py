"""The part of the JSON of `lmi compare`, `lmi bench` and `lmi simulate` that a page shows."""

from __future__ import annotations

from typing import Any

import msgspec

from container.measure.compare.results import RequestTiming
from container.measure.compare.summary import Median
from container.measure.sections import Finding, Section


class BadResults(Exception):
    """A document does not have the keys that the commands of this version write. The message is for users."""


class NamedConfiguration(msgspec.Struct, frozen=True):
    name: str


class RatioInterval(msgspec.Struct, frozen=True):
    """JSON form of `Ratio`; an infinite upper bound is null."""

    value: float
    low: float
    high: float | None
    count: int


class P90(msgspec.Struct, frozen=True):
    p90: float | None


class RunMetrics(msgspec.Struct, frozen=True):
    output_tokens_per_second: float | None
    latency: P90


class ReportedRound(msgspec.Struct, frozen=True):
    """JSON form of `RoundResult`, with the fields that a page shows."""

    configuration: str
    scenario: str
    metrics: RunMetrics
    requests: tuple[RequestTiming, ...]
    started: float | None
    ended: float | None
    step_trace: str

    @property
    def answered(self) -> list[RequestTiming]:
        """The requests that succeeded."""
        return [one for one in self.requests if not one.error and one.first_token is not None]


class ScenarioSummary(msgspec.Struct, frozen=True):
    """Statistics of a configuration in a scenario, by measure."""

    configuration: str
    scenario: str
    metrics: dict[str, Median | None] = {}
    ratios_to_first: dict[str, RatioInterval | None] = {}


class PartOfGain(msgspec.Struct, frozen=True):
    """One part of a gain: the ratio of two configurations."""

    scenario: str
    measure: str
    cause: str
    is_sum: bool
    ratio: RatioInterval | None


class ReportedTrial(msgspec.Struct, frozen=True):
    """JSON form of `RateTrial`; the rate of a burst is null."""

    rate: float | None
    metrics: RunMetrics


class Results(msgspec.Struct, frozen=True):
    """A whole document. `lmi bench` and `lmi simulate` write only some of its keys."""

    title: str
    lead: str
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    configurations: tuple[NamedConfiguration, ...] = ()
    rounds: tuple[ReportedRound, ...] = ()
    summary: tuple[ScenarioSummary, ...] = ()
    attribution: tuple[PartOfGain, ...] = ()
    trials: tuple[ReportedTrial, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the configurations, the baseline first."""
        return tuple(config.name for config in self.configurations)

    @property
    def scenarios(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.scenario for one in self.rounds))

    def rounds_of(self, name: str, scenario: str) -> list[ReportedRound]:
        """Return the rounds of a configuration in a scenario, ordered by number."""
        return [one for one in self.rounds if (one.configuration, one.scenario) == (name, scenario)]

    def summary_of(self, name: str, scenario: str) -> ScenarioSummary:
        """Return the summary of a configuration in a scenario; an empty summary if there is none."""
        found = (one for one in self.summary if (one.configuration, one.scenario) == (name, scenario))
        return next(found, ScenarioSummary(name, scenario))


def read_results(document: Any) -> Results:
    """Validate and convert a document. Raises BadResults."""
    try:
        return msgspec.convert(document, Results)
    except msgspec.ValidationError as error:
        raise BadResults(
            f"not the results of this version of lmi compare, lmi bench or lmi simulate ({error}); run the command"
            " again with --json"
        ) from error
