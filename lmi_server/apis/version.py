"""`GET /version`: this server's version, in the shape that vLLM gives it."""

from __future__ import annotations

from importlib.metadata import version

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext
from lmi_server.errors import dump

_DISTRIBUTION = "lmi-server"


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("version", __name__)
    body = dump({"version": version(_DISTRIBUTION)}) + "\n"

    @blueprint.get("/version")
    def get_version() -> Response:
        return Response(body, content_type="application/json")

    return blueprint
