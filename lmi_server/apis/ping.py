"""`GET /ping` and `GET /health`: 200 while the engine, or at least one of its copies, is ready and makes progress.

The processes of a user's formatters must be ready too.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from engines.health import Health
from lmi_server.apis.base import ServerContext
from lmi_server.http.json_reply import json_response, unhealthy_response


def api(context: ServerContext) -> Blueprint:
    blueprint = Blueprint("ping", __name__)

    @blueprint.get("/ping")
    @blueprint.get("/health")
    def ping() -> Response:
        health = context.health()
        copies = _copies(health)
        if health.ready:
            return json_response({"status": "Healthy", **copies})
        state = {"state": health.state.name.lower(), "reason": health.describe()}
        return unhealthy_response({**state, **copies})

    return blueprint


def _copies(health: Health) -> dict[str, Any]:
    """Return how many copies serve, if there are several copies of the model."""
    if not health.copies:
        return {}
    return {"copies": {"serving": sum(copy.ready for copy in health.copies), "total": len(health.copies)}}
