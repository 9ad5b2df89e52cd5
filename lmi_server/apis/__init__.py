"""The HTTP APIs. Each has a file and an entry in `APIS` or `HANDLER_APIS`."""

from lmi_server.apis import admin, metrics, ping, version
from lmi_server.apis.base import Api, HandlerApi
from lmi_server.apis.handler import invocations as handler
from lmi_server.apis.lmi import invocations, predictions
from lmi_server.apis.openai import chat, completions, models

APIS: tuple[Api, ...] = (
    ping.api,
    invocations.api,
    predictions.api,
    chat.api,
    completions.api,
    models.api,
    metrics.api,
    version.api,
    admin.api,
)

HANDLER_APIS: tuple[HandlerApi, ...] = (ping.api, handler.api, metrics.api, version.api)
"""APIs of a server that runs a user's handler."""
