"""What a server says of itself at `/metrics`, and what a round changed in it."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 4 << 20
SAMPLE_SECONDS = 0.5
"""Between two looks at the KV cache during a round."""


class NoMetrics(Exception):
    """`/metrics` does not answer, or not with metrics."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The batches of one round."""

    count: int
    """Steps under engine=MPI, batches under engine=Python."""
    mean: float
    """Sequences a step, or requests a batch."""


@dataclass(frozen=True, slots=True)
class KvUse:
    """The KV cache during one round, in slots: the place of one token each."""

    num_samples: int
    slots_total: float
    mean_allocated: float
    peak_allocated: float
    waste: float | None
    """Share of the allocated slots in which no token stood, over all samples; None where nothing was allocated."""

    @property
    def mean_share(self) -> float:
        """Allocated slots over all slots, on the average."""
        return self.mean_allocated / self.slots_total

    @property
    def peak_share(self) -> float:
        return self.peak_allocated / self.slots_total


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at `/metrics`: sample names to values, summed over label sets."""

    samples: dict[str, float]

    def batches_since(self, before: Snapshot) -> BatchSizes | None:
        """From the histogram of batch sizes; None where there is none, or nothing ran in between."""
        name = "lmi_batch_size"
        if f"{name}_count" not in self.samples:
            return None
        count = self.samples[f"{name}_count"] - before.samples.get(f"{name}_count", 0.0)
        total = self.samples[f"{name}_sum"] - before.samples.get(f"{name}_sum", 0.0)
        return BatchSizes(int(count), total / count) if count > 0 else None

    @property
    def idle(self) -> bool:
        """No request runs or waits."""
        return not any(self.samples.get(f"lmi_requests_{state}") for state in ("running", "waiting"))

    @property
    def kv_slots(self) -> tuple[float, float, float] | None:
        """(all, allocated, allocated but unfilled) slots; None under an engine without a KV cache of its own."""
        names = ("blocks_total", "blocks_free", "blocks_cached", "slots_total", "slots_unfilled")
        values = [self.samples.get(f"lmi_kv_{name}") for name in names]
        known = [value for value in values if value is not None]
        if len(known) < len(names) or not known[0]:
            return None
        blocks, free, cached, slots, unfilled = known
        return slots, (blocks - free - cached) * slots / blocks, unfilled


def parse(text: str) -> Snapshot:
    """Read Prometheus' text form. Raises `NoMetrics` where it is something else."""
    samples: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    except ValueError as error:
        raise NoMetrics(f"/metrics is not in Prometheus' text form: {error}") from error
    return Snapshot(samples)


def scrape(url: str) -> Snapshot:
    """Look at the server's `/metrics`. url: `http://host:port`. Raises `NoMetrics`."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            return parse(answer.read(_MAX_BYTES).decode(errors="replace"))
    except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
        raise NoMetrics(f"{url}/metrics does not answer: {error}") from error


def kv_use(snapshots: Sequence[Snapshot]) -> KvUse | None:
    """Use and waste over samples at equal distances; None where no sample tells of a KV cache."""
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


class Sampler:
    """Looks at a server from a thread of its own while a round runs. A context manager."""

    def __init__(self, look: Callable[[], Snapshot], seconds: float = SAMPLE_SECONDS) -> None:
        self.snapshots: list[Snapshot] = []
        self._look = look
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-sampler", daemon=True)

    def _run(self) -> None:
        due = time.monotonic() + self._seconds / 5  # a short round is seen too
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            try:
                self.snapshots.append(self._look())
            except NoMetrics:
                # A look that fails costs a sample; a server that is gone shows in the requests.
                continue
            finally:
                due = max(due + self._seconds, time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_TIMEOUT_SECONDS + 1.0)
