"""The HTTP dialects: one file and one line each."""

from lmi_server.apis import admin, metrics, ping, version
from lmi_server.apis.base import Api
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
