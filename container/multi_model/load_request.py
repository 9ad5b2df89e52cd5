"""The request `POST /models`, which loads a model: its fields in a JSON object, or in the query as in DJL Serving."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from container.multi_model.errors import BadModel
from container.multi_model.names import check_name
from lmi_server.values.show import as_json, names_in_log

_IN_PROPERTIES = {
    "engine": "engine",
    "batch_size": "batch_size",
    "job_queue_size": "job_queue_size",
    "max_batch_delay": "max_batch_delay",
    "max_idle_time": "max_idle_time",
    "min_worker": "minWorkers",
    "max_worker": "maxWorkers",
}
"""Fields of DJL Serving, and the key of serving.properties to set instead."""
_REFUSED = {
    **{name: f"set {key} in the model's serving.properties instead" for name, key in _IN_PROPERTIES.items()},
    "device": "set CUDA_VISIBLE_DEVICES of the container to select GPUs instead",
    "model_version": "models have no versions; load each version under its own model_name",
}
_logger = logging.getLogger(__name__)


def name_and_url(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the model's name and URL. Raises BadModel.

    Known fields that would change how the model is served are refused. Unknown ones are ignored, because platforms may
    add some.
    """
    name, url = (_text(fields, field) for field in ("model_name", "url"))
    check_name(name)
    given = {field: value for field, value in fields.items() if value not in (None, "")}
    for field, instead in _REFUSED.items():
        if field in given:
            raise BadModel(f"{field}: given {as_json(given[field])}; accepted: none; {instead}")
    if str(given.get("synchronous", True)).lower() != "true":
        value = as_json(given["synchronous"])
        raise BadModel(
            f"synchronous: given {value}; accepted: true; the response follows when the model is ready"
        )
    if unknown := given.keys() - {"model_name", "url", "synchronous"}:
        _logger.warning("POST /models: unknown fields are ignored: %s", names_in_log(sorted(unknown)))
    return name, url


def _text(fields: Mapping[str, Any], field: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str) or not value:
        raise BadModel(f"{field}: given {as_json(value)}; accepted: a non-empty string")
    return value
