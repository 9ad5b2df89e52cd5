"""The HTTP dialects: one file and one line each."""

from lmi_server.apis import invocations, metrics, openai_chat, ping
from lmi_server.apis.base import Api

APIS: tuple[Api, ...] = (
    ping.api,
    invocations.api,
    openai_chat.api,
    metrics.api,
)
