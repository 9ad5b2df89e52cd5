"""`POST /predictions/{model}` and `/predictions/{model}/{version}`, DJL Serving's names for `/invocations`.

Only one model is served, so model and version are just labels: 1 to 128 letters, digits, `.`, `_` and `-`, starting
with a letter or a digit. Any other label returns 404.
"""

from __future__ import annotations

import re

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext
from lmi_server.apis.lmi.invocations import invoke
from lmi_server.errors import NotFound
from lmi_server.values.show import as_json

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("predictions", __name__)

    @blueprint.post("/predictions/<model>", defaults={"version": None})
    @blueprint.post("/predictions/<model>/<version>")
    def predictions(model: str, version: str | None) -> Response:
        for what, label in (("model", model), ("version", version)):
            if label is not None and not _LABEL.fullmatch(label):
                raise NotFound(
                    f"{what} in the path: given {as_json(label)}; accepted: 1 to 128 letters, digits, '.', '_' "
                    "and '-', the first a letter or a digit"
                )
        return invoke(context)

    return blueprint
