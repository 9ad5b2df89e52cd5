"""Metrics for `GET /metrics`: the engine's metrics and the number of HTTP requests.

With several web workers, prometheus_client sums the number of requests over the files in PROMETHEUS_MULTIPROC_DIR. The
code that starts the workers sets this variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from engines.base import Engine
from engines.core import EngineInfo, EngineStats, HistogramData

_STATS_TIMEOUT_SECONDS = 2.0
_COPY = "copy"
"""Label of the values of a single model copy."""


class Metrics:
    """Metrics of the web process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "lmi_http_requests",
            "HTTP requests answered, by path and status",
            ["path", "status"],
            registry=self._registry,
        )

    def count_request(self, path: str, status: int) -> None:
        """Count an answered request. `path` must be a route, not client text, to keep the number of labels low."""
        self._requests.labels(path, str(status)).inc()

    def render(self, engine: Engine) -> bytes:
        """Return all metrics in the Prometheus text format. `lmi_engine_up` is 0 if the engine does not answer."""
        registry = CollectorRegistry()
        registry.register(_EngineCollector(engine.stats(_STATS_TIMEOUT_SECONDS)))
        own = self._registry
        if values.ValueClass is not values.MutexValue:
            own = CollectorRegistry()
            MultiProcessCollector(own)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + generate_latest(own)


class _EngineCollector(Collector):
    """Collector that exports an `EngineStats` as metric families, under the engine's names.

    With several model copies, each copy has its own samples, labeled `copy`.
    """

    def __init__(self, stats: EngineStats | None) -> None:
        self._up = stats is not None
        self._by_copy = {} if stats is None else {"": stats, **stats.copies}

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("lmi_engine_up", "Whether the engine responds", value=float(self._up))
        if not self._up:
            return
        yield _info(self._by_copy[""].info)
        yield from _families({copy: stats.gauges for copy, stats in self._by_copy.items()}, GaugeMetricFamily)
        yield from _families(
            {copy: stats.counters for copy, stats in self._by_copy.items()}, CounterMetricFamily
        )
        by_name: dict[str, list[HistogramData]] = {}
        for copy, stats in self._by_copy.items():
            for histogram in stats.histograms:
                labels = histogram.labels | ({_COPY: copy} if copy else {})
                by_name.setdefault(histogram.name, []).append(replace(histogram, labels=labels))
        for name, histograms in by_name.items():
            yield _histogram(name, histograms)


def _families(
    by_copy: Mapping[str, Mapping[str, float]], family_type: type[GaugeMetricFamily | CounterMetricFamily]
) -> Iterator[Metric]:
    """Yield a family for each name. `by_copy`: values by name, for each copy and, under "", those without a copy."""
    for name in dict.fromkeys(name for by_name in by_copy.values() for name in by_name):
        family = family_type(name, _help_text(name), labels=[_COPY])
        for copy, by_name in by_copy.items():
            if name in by_name:
                # add_metric() leaves out the last label if it gets fewer values than labels.
                family.add_metric([copy] if copy else [], by_name[name])
        yield family


def _info(info: EngineInfo) -> Metric:
    labels = {
        "model": info.model,
        "engine": info.engine,
        "world_size": str(info.world_size),
        "device": info.device,
        "dtype": info.dtype,
        "paged_attention": str(info.paged_attention).lower(),
    }
    family = GaugeMetricFamily("lmi_engine_info", "The running model and engine", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _histogram(name: str, histograms: list[HistogramData]) -> Metric:
    """Create one family from histograms that differ in their labels. Prometheus buckets are cumulative."""
    label_names = sorted({label for histogram in histograms for label in histogram.labels} - {_COPY})
    family = HistogramMetricFamily(name, _help_text(name), labels=[*label_names, _COPY])
    for histogram in histograms:
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            buckets.append((bound, total))
        label_values = [histogram.labels.get(label, "") for label in label_names]
        copy = [histogram.labels[_COPY]] if _COPY in histogram.labels else []
        family.add_metric([*label_values, *copy], buckets, sum_value=histogram.sum)
    return family


def _help_text(name: str) -> str:
    return name.removeprefix("lmi_").replace("_", " ")
