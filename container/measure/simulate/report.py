"""Report of a simulation: that of `lmi bench`, marked as simulated, with cost and the engine's counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from container.measure.bench.report import BenchOrigin, BenchReport
from container.measure.numbers import format_number
from container.measure.simulate.calibration import CalibratedTimes
from container.measure.simulate.clients import ARRIVAL_SECONDS
from container.measure.simulate.prices import Cost
from container.measure.simulate.server import SimulatedServer
from container.measure.simulate.step_times import StepTimes
from engines.core import EngineStats

_COUNTERS = {
    "lmi_steps_total": "steps",
    "lmi_preemptions_total": "preemptions",
    "lmi_recomputed_tokens_total": "recomputed tokens",
    "lmi_prefix_hit_tokens_total": "prompt tokens from the prefix cache",
    "lmi_padding_tokens_total": "padding tokens",
    "lmi_ended_row_tokens_total": "tokens computed for finished rows",
}


@dataclass(frozen=True, slots=True)
class SimulationOrigin(BenchOrigin):
    """Everything needed to repeat a simulation. `url` is the configuration's path."""

    hardware: str
    step_times: str

    @property
    def title(self) -> str:
        scenario = self.scenario.describe()
        return f"simulated: {self.url} on {self.hardware}: {scenario}, seed {self.seed}"

    @property
    def notes(self) -> str:
        return (
            f"simulated, not measured; step times: {self.step_times}; requests take {1000 * ARRIVAL_SECONDS:g} ms to"
            " reach the engine, responses no time"
        )


@dataclass(frozen=True, slots=True)
class SimulationReport(BenchReport):
    """One run in virtual time."""

    server: SimulatedServer
    times: StepTimes
    stats: EngineStats
    costs: tuple[Cost, ...]

    def json_values(self) -> dict[str, Any]:
        """Return the values of a benchmark and of the simulation. Times are in seconds, costs in USD."""
        return {
            "simulated": True,
            **BenchReport.json_values(self),
            "calibration": self.times if isinstance(self.times, CalibratedTimes) else None,
            "kv_cache_blocks": self.server.num_blocks,
            "mean_batch_size": self._mean_batch(),
            "counters": self.stats.counters,
            "costs": self.costs,
            "notes": self.server.notes,
        }

    def _own_lines(self) -> list[tuple[str, str]]:
        counted = [
            f"{count:.0f} {words}"
            for name, words in _COUNTERS.items()
            if (count := self.stats.counters.get(name, 0.0))
        ]
        lines = [(one.describe(), "bold") for one in self.costs]
        lines.append(
            (f"engine: {format_number(self._mean_batch())} sequences per batch, {', '.join(counted)}", "")
        )
        return lines + [(f"note: {note}", "") for note in self.server.notes]

    def _mean_batch(self) -> float:
        """Return the mean number of sequences per step of engine=MPI, or per batch of engine=Python."""
        (sizes,) = [one for one in self.stats.histograms if one.name == "lmi_batch_size"]
        return sizes.sum / max(1, sum(sizes.counts))
