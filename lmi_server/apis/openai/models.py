"""`GET /v1/models` and `/v1/models/{name}`: the served model, under any name."""

from __future__ import annotations

import time
from typing import Any

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext
from lmi_server.apis.openai.fields import DEFAULT_MODEL
from lmi_server.http.json_reply import json_response


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_models", __name__)
    started = int(time.time())
    config = context.config
    # As in vLLM, whose clients take the tokenizer from `root`.
    facts = {"root": config.hub_id or config.model_path, "max_model_len": config.max_model_len}

    def entry(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "lmi", **facts}

    @blueprint.get("/v1/models")
    def models() -> Response:
        body = {"object": "list", "data": [entry(DEFAULT_MODEL)]}
        return json_response(body)

    @blueprint.get("/v1/models/<path:name>")
    def model(name: str) -> Response:
        # Requests may use any model name, so every name refers to the served model.
        return json_response(entry(name))

    return blueprint
