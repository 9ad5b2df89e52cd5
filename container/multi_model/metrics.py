"""`GET /metrics` of several models: memory of each model, and its server's own metrics with a label `model`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import urllib3
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from container.multi_model.manager import ModelManager
from container.multi_model.served_model import ServedModel
from container.run.local_server import HOST

_SECONDS = 5.0
"""Longer than a model's server waits for its engine, and shorter than Prometheus waits for all models (10 s)."""
_LABEL = "model"
_logger = logging.getLogger(__name__)


def render(manager: ModelManager) -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_ModelsCollector(manager))
    return generate_latest(registry)


class _ModelsCollector(Collector):
    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        loaded = GaugeMetricFamily("lmi_model_loaded", "Whether the model is loaded", labels=[_LABEL])
        memory = GaugeMetricFamily("lmi_model_memory_bytes", "Main memory used by the model", labels=[_LABEL])
        families: dict[str, Metric] = {}
        models = self._manager.models()
        with ThreadPoolExecutor(max(1, len(models)), "metrics") as pool:
            for model, own in zip(models, pool.map(_own, models), strict=True):
                loaded.add_metric([model.name], float(model.is_ready))
                memory.add_metric([model.name], float(self._manager.measured(model)))
                for family in own:
                    merged = families.setdefault(
                        family.name, Metric(family.name, family.documentation, family.type)
                    )
                    merged.samples += [_labelled(sample, model) for sample in family.samples]
        yield from (loaded, memory, *families.values())


def _labelled(sample: Sample, model: ServedModel) -> Sample:
    """Return a sample with the label `model`. Its own label of this name is renamed, as Prometheus does."""
    labels = {f"exported_{name}" if name == _LABEL else name: text for name, text in sample.labels.items()}
    return Sample(sample.name, {**labels, _LABEL: model.name}, sample.value)


def _own(model: ServedModel) -> list[Metric]:
    """Return the metrics of a model's server: that its engine is not up, if the server does not respond in time."""
    if not model.is_ready or (server := model.server) is None:
        return []
    try:
        answer = urllib3.request(
            "GET", f"http://{HOST}:{server.port}/metrics", timeout=_SECONDS, retries=False
        )
        return list(text_string_to_metric_families(answer.data.decode()))
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        _logger.warning("model %s: cannot read metrics: %s", model.name, error)
        return [GaugeMetricFamily("lmi_engine_up", "Whether the engine responds", value=0.0)]
