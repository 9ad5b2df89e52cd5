"""`GET /metrics` in the Prometheus text format."""

from __future__ import annotations

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST

from lmi_server.apis.base import ServerContext


def api(context: ServerContext) -> Blueprint:
    blueprint = Blueprint("metrics", __name__)

    @blueprint.get("/metrics")
    def metrics() -> Response:
        return Response(context.metrics.render(context.engine), content_type=CONTENT_TYPE_LATEST)

    return blueprint
