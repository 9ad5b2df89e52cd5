"""The HTTP dialects: one file and one line each."""

from lmi_server.apis import (
    admin,
    invocations,
    metrics,
    openai_chat,
    openai_completions,
    openai_models,
    ping,
    predictions,
    version,
)
from lmi_server.apis.base import Api

APIS: tuple[Api, ...] = (
    ping.api,
    invocations.api,
    predictions.api,
    openai_chat.api,
    openai_completions.api,
    openai_models.api,
    metrics.api,
    version.api,
    admin.api,
)
