"""DJL Serving's and SageMaker's other names for `/invocations`: `POST /predictions/{model}`,
`/predictions/{model}/{version}` and `/models/{model}/invoke`.

Only one model is served, so model and version are just labels. One that no model may have returns 404.
"""

from __future__ import annotations

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext
from lmi_server.apis.lmi.invocations import invoke
from lmi_server.errors import NotFound
from lmi_server.values.model_name import MODEL_NAME, MODEL_NAME_RULE
from lmi_server.values.show import as_json


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("predictions", __name__)

    @blueprint.post("/predictions/<model>")
    @blueprint.post("/predictions/<model>/<version>")
    @blueprint.post("/models/<model>/invoke")
    def predictions(model: str, version: str | None = None) -> Response:
        for what, label in (("model", model), ("version", version)):
            if label is not None and not MODEL_NAME.fullmatch(label):
                raise NotFound(f"{what} in the path: given {as_json(label)}; accepted: {MODEL_NAME_RULE}")
        return invoke(context)

    return blueprint
