"""Default sampling parameters of OpenAI bodies: the model's defaults if it has any, else OpenAI's."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.table import rows
from lmi_server.config import WebConfig
from lmi_server.errors import InvalidField
from lmi_server.text.json_file import read_json

_logger = logging.getLogger(__name__)

_MODEL_PARAMETERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters read from the model: the same as in vLLM, except for lengths."""


def openai_defaults(config: WebConfig) -> Mapping[str, Any]:
    """Return the defaults by key of the parameter table, and log the defaults that come from the model.

    A value that would be invalid in a request is ignored with a warning.

    Raises:
        ValueError: generation_config.json is not a JSON object.
    """
    model_values: dict[str, Any] = {}
    if config.server.generation_config == "auto":
        table = rows(Names.COMPLETIONS)
        file = read_json(Path(config.model_path) / "generation_config.json")
        for name in _MODEL_PARAMETERS:
            if file.get(name) is None:
                continue
            try:
                model_values[name] = table[name].check(name, file[name])
            except InvalidField as error:
                _logger.warning("generation_config.json of the model: ignored: %s", error)
    if model_values:
        _logger.info(
            "sampling defaults of OpenAI's requests from the model's generation_config.json: %s "
            "(option.generation_config=vllm leaves them out)",
            json.dumps(model_values),
        )
    return MappingProxyType({"temperature": 1.0, **model_values})
