"""Load scenarios: requests and their arrivals. `--preset` selects one from the table of presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from container.measure.bench.arrivals import Arrivals, Burst, OpenLoop, Users
from container.measure.bench.lengths import Exponential, Fixed, Normal, RecordedLengths, ShortAndLong
from container.measure.bench.prefixes import RecordedPrefixes, SharedPrefixes
from container.measure.bench.workload import Workload

_WARM_UP_REQUESTS = 8
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load: requests and their arrivals."""

    name: str
    workload: Workload
    arrivals: Arrivals

    def scaled(self, factor: float) -> Scenario:
        """Multiply token counts, requests, users and rates by `factor`. An open loop takes as long as before."""
        return replace(self, workload=self.workload.scaled(factor), arrivals=self.arrivals.scaled(factor))

    def warm_up(self, num_requests: int | None = None) -> Scenario:
        """Return a load with the same prompt lengths and short answers. num_requests: defaults to a few.

        A trace limits their number, because it has no further prompts.
        """
        most = self.arrivals.num_users if isinstance(self.arrivals, Users) else _WARM_UP_REQUESTS
        count = num_requests or min(_WARM_UP_REQUESTS, most, self.workload.num_requests)
        prompts, prefixes = self.workload.prompts, self.workload.prefixes
        if isinstance(prompts, RecordedLengths):
            count = min(count, len(prompts.tokens))
        if isinstance(prefixes, RecordedPrefixes):
            count = min(count, len(prefixes.block_ids))
        tokens = min(_WARM_UP_TOKENS, round(self.workload.outputs.mean))
        workload = replace(self.workload, outputs=Fixed(tokens), num_requests=count)
        return Scenario(f"{self.name}, warm-up", workload, Users(min(count, most)))

    def describe(self) -> str:
        arrivals = self.arrivals.describe(self.workload.num_requests)
        return f"{arrivals}, {self.workload.describe()}"


_USERS = Users(32)


_ANSWERS = Exponential(128, 1536)


def _anyscale(outputs: Exponential) -> tuple[Workload, Arrivals]:
    return Workload(Fixed(512), outputs, 1000), Burst()


PRESETS: Mapping[str, Scenario] = {
    name: Scenario(name, workload, arrivals)
    for name, (workload, arrivals) in {
        "aws-1": (Workload(Fixed(32), Fixed(128), 128), _USERS),
        "aws-2": (Workload(Fixed(256), Fixed(32), 128), _USERS),
        "summarize": (Workload(Fixed(500), Normal(100, 20), 128), _USERS),
        "code": (Workload(Fixed(15), Fixed(500), 128), _USERS),
        "anyscale": _anyscale(_ANSWERS),
        "anyscale-32": _anyscale(_ANSWERS.at_most(32)),
        "anyscale-128": _anyscale(_ANSWERS.at_most(128)),
        "anyscale-512": _anyscale(_ANSWERS.at_most(512)),
        "databricks": (Workload(Normal(512, 128), Fixed(128), 256), Users(32, ramp=1.0)),
        "shared-prefix": (Workload(Fixed(1280), Fixed(64), 128, SharedPrefixes(8, 1024)), _USERS),
        "long-and-short": (
            Workload(ShortAndLong(64, 2048, 0.1), ShortAndLong(32, 512, 0.1), 200),
            OpenLoop(4.0),
        ),
    }.items()
}
