"""`GET /ping`, `GET /health`: 200 only while the engine makes progress on a loaded model."""

from __future__ import annotations

from flask import Blueprint, Response

from lmi_server.apis.base import ServerContext
from lmi_server.http.json_reply import json_response

_RETRY_AFTER_SECONDS = 5


def api(context: ServerContext) -> Blueprint:
    blueprint = Blueprint("ping", __name__)

    @blueprint.get("/ping")
    @blueprint.get("/health")
    def ping() -> Response:
        health = context.engine.health()
        if health.ready:
            return json_response({"status": "Healthy"})
        body = {"status": "Unhealthy", "state": health.state.name.lower(), "reason": health.describe()}
        response = json_response(body, 503)
        response.headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
        return response

    return blueprint
