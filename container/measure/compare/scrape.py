"""Read batch sizes, KV cache use and counters from a server's `/metrics`."""

from __future__ import annotations

import dataclasses
import http.client
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from container.errors import UserError

_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 4 << 20
SAMPLE_SECONDS = 0.5
"""Time between two samples of the KV cache use during a round."""
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""Opens a URL of a server, without the proxies of the environment: they cannot reach a server on this machine."""

_Labels = frozenset[tuple[str, str]]


class NoMetrics(UserError):
    """`/metrics` does not respond, or not in the Prometheus text format."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The batches of one round."""

    count: int
    """Steps under engine=MPI, batches under engine=Python."""
    mean: float
    """Mean sequences per step, or requests per batch."""


@dataclass(frozen=True, slots=True)
class KvUse:
    """Use of the KV cache during one round, in slots of one token."""

    num_samples: int
    slots_total: float
    mean_allocated: float
    peak_allocated: float
    waste: float | None
    """Share of the allocated slots without a token, over all samples; None if nothing was allocated."""

    @property
    def mean_share(self) -> float:
        """Mean share of the slots that are allocated."""
        return self.mean_allocated / self.slots_total

    @property
    def peak_share(self) -> float:
        return self.peak_allocated / self.slots_total


@dataclass(frozen=True, slots=True)
class RoundCounters:
    """Increase of a server's counters over one round; None if the server has no such counter."""

    prompt_tokens: int | None = None
    tokens_generated: int | None = None
    padding_tokens: int | None = None
    """Padding of the shorter prompts of a batch. engine=Python only."""
    ended_row_tokens: int | None = None
    """Tokens computed for finished rows of an unfinished batch. engine=Python only."""
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    """Tokens recomputed after preemptions."""
    prefix_hit_tokens: int | None = None
    """Prompt tokens that were found in the prefix cache."""

    @property
    def wasted_share(self) -> float | None:
        """Share of the computed tokens that were padding, ended rows or recomputed."""
        useful = [self.prompt_tokens, self.tokens_generated]
        wasted = [self.padding_tokens, self.ended_row_tokens, self.recomputed_tokens]
        known = [count for count in wasted if count is not None]
        computed = sum(known) + sum(count or 0 for count in useful) - (self.prefix_hit_tokens or 0)
        return sum(known) / computed if known and computed > 0 else None

    @property
    def prefix_hit_share(self) -> float | None:
        """Share of the prompt tokens that were found in the prefix cache."""
        if self.prefix_hit_tokens is None or not self.prompt_tokens:
            return None
        return self.prefix_hit_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The samples of one scrape of `/metrics`."""

    series: dict[str, dict[_Labels, float]]
    """Values by metric name and label set. Each copy of the model has its own."""
    engine_info: dict[str, str] = field(default_factory=dict)
    """Labels of `lmi_engine_info`; empty for other kinds of servers."""

    def batches_since(self, before: MetricsSnapshot) -> BatchSizes | None:
        """Return the batches since an earlier snapshot; None without a batch-size histogram, or if nothing ran."""
        count, total = (self._increase(f"lmi_batch_size_{part}", before) for part in ("count", "sum"))
        return BatchSizes(int(count), total / count) if count and total is not None else None

    def counters_since(self, before: MetricsSnapshot) -> RoundCounters:
        """Return the increase of the counters since an earlier snapshot."""
        names = [field.name for field in dataclasses.fields(RoundCounters)]
        found = {name: self._increase(f"lmi_{name}_total", before) for name in names}
        return RoundCounters(**{name: round(value) for name, value in found.items() if value is not None})

    def _increase(self, name: str, before: MetricsSnapshot) -> float | None:
        """Return the increase of a counter over all its label sets; None if one of them is missing now.

        A smaller value than before is that of a copy that was restarted, and counts from 0.
        """
        now, then = self.series.get(name, {}), before.series.get(name, {})
        if not now or then.keys() - now.keys():
            return None
        pairs = ((value, then.get(labels, 0.0)) for labels, value in now.items())
        return sum(value if value < earlier else value - earlier for value, earlier in pairs)

    @property
    def samples(self) -> dict[str, float]:
        """Values by metric name, summed over label sets."""
        return {name: sum(values.values()) for name, values in self.series.items()}

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits. False if the engine did not respond in time, as a busy engine may not."""
        samples = self.samples
        if not samples.get("lmi_engine_up", 1.0):
            return False
        return not any(samples.get(f"lmi_requests_{state}") for state in ("running", "waiting"))

    @property
    def kv_slots(self) -> tuple[float, float, float] | None:
        """(total, allocated, allocated but unfilled) slots; None for an engine without its own KV cache."""
        names = ("blocks_total", "blocks_free", "blocks_cached", "slots_total", "slots_unfilled")
        samples = self.samples
        values = [samples.get(f"lmi_kv_{name}") for name in names]
        known = [value for value in values if value is not None]
        if len(known) < len(names) or not known[0]:
            return None
        blocks, free, cached, slots, unfilled = known
        return slots, (blocks - free - cached) * slots / blocks, unfilled


def parse_metrics(text: str) -> MetricsSnapshot:
    """Parse the Prometheus text format. Raises NoMetrics if the text has another format."""
    series: dict[str, dict[_Labels, float]] = {}
    info: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
                if sample.name == "lmi_engine_info":
                    info = dict(sample.labels)
    except ValueError as error:
        raise NoMetrics(f"/metrics is not in the text format of Prometheus: {error}") from error
    return MetricsSnapshot(series, info)


def scrape(url: str) -> MetricsSnapshot:
    """Fetch the server's `/metrics`. url: `http://host:port`. Raises NoMetrics."""
    try:
        with open_url(f"{url}/metrics", timeout=_TIMEOUT_SECONDS) as answer:
            return parse_metrics(answer.read(_MAX_BYTES).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise NoMetrics(f"cannot read {url}/metrics: {error}") from error


def kv_use(snapshots: Sequence[MetricsSnapshot]) -> KvUse | None:
    """Compute mean, peak and waste over the samples of a round; None if no sample has KV cache metrics."""
    seen = [slots for snapshot in snapshots if (slots := snapshot.kv_slots) is not None]
    if not seen:
        return None
    allocated = [used for _, used, _ in seen]
    unfilled = [empty for _, _, empty in seen]
    return KvUse(
        num_samples=len(seen),
        slots_total=seen[-1][0],
        mean_allocated=sum(allocated) / len(seen),
        peak_allocated=max(allocated),
        waste=sum(unfilled) / sum(allocated) if sum(allocated) else None,
    )


@contextmanager
def sampling(
    look: Callable[[], MetricsSnapshot], seconds: float = SAMPLE_SECONDS
) -> Iterator[list[MetricsSnapshot]]:
    """Call `look` every `seconds` in a thread while the block runs; yields the list of snapshots so far."""
    snapshots: list[MetricsSnapshot] = []
    stop = threading.Event()

    def run() -> None:
        due = time.monotonic() + seconds / 5  # so that a short round has a sample too
        while not stop.wait(max(0.0, due - time.monotonic())):
            with suppress(NoMetrics):  # only a sample is lost; a dead server makes its requests fail
                snapshots.append(look())
            due = max(due + seconds, time.monotonic())

    thread = threading.Thread(target=run, name="metrics-sampler", daemon=True)
    thread.start()
    try:
        yield snapshots
    finally:
        stop.set()
        thread.join(_TIMEOUT_SECONDS + 1.0)
