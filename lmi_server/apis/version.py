"""`GET /version`: this server's version, in vLLM's format."""

from __future__ import annotations

from importlib.metadata import version

from flask import Blueprint, Response

from lmi_server.apis.base import ServerContext
from lmi_server.http.json_reply import json_response

_DISTRIBUTION = "lmi-server"


def api(context: ServerContext) -> Blueprint:
    blueprint = Blueprint("version", __name__)
    body = {"version": version(_DISTRIBUTION)}

    @blueprint.get("/version")
    def get_version() -> Response:
        return json_response(body)

    return blueprint
