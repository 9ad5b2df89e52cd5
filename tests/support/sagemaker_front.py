"""A thin stand-in for SageMaker's runtime API before a real container: what boto3's `sagemaker-runtime` talks to.

It maps paths and headers as the platform does, passes bodies through, wraps streams in event-stream messages, and
turns a container's error into `ModelError`. It checks no signature and knows one endpoint.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tests.support.event_stream import exception, payload_part
from tests.support.loopback import LoopbackServer, QuietHandler

ENDPOINT = "my-endpoint"
VARIANT = "AllTraffic"
CUT_SIZES = (1, 7, 30, 3, 200, 2)
"""Bytes of the parts of a stream, in turn: nothing about them fits lines or characters."""
_PATH = re.compile(r"/endpoints/([^/]+)/(invocations|invocations-response-stream)")
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_PREFIX = "X-Amzn-SageMaker-"
_PASSED_ON = (
    "Content-Type",
    *(
        _PREFIX + name
        for name in ("Custom-Attributes", "Target-Model", "Inference-Id", "Session-Id", "Enable-Explanations")
    ),
)
"""What a container gets of the caller's headers; all others are the platform's own."""
_HANDED_BACK = (_PREFIX + "Custom-Attributes", _PREFIX + "New-Session-Id", _PREFIX + "Closed-Session-Id")
_MAX_MESSAGE_CHARS = 2048
_CONTAINER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """What went to the container and came back; names of headers in lower case."""

    sent: Mapping[str, str]
    status: int
    received: Mapping[str, str]


class SageMakerFront(LoopbackServer):
    """Knows what went to the container and came back."""

    def __init__(self, container_url: str) -> None:
        super().__init__(_Handler)
        address = urlsplit(container_url)
        self.container = (address.hostname or "", address.port or 80)
        self.exchanges: list[Exchange] = []


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: SageMakerFront

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = _PATH.fullmatch(unquote(self.path))
        if path is None:
            return self._error(404, "UnknownOperationException", {"Message": "no such operation"})
        name, operation = path.groups()
        if not _NAME.fullmatch(name) or name != ENDPOINT:
            return self._error(400, "ValidationError", {"Message": f"Endpoint {name} not found."})
        streamed = operation == "invocations-response-stream"
        connection = http.client.HTTPConnection(*self.server.container, timeout=_CONTAINER_SECONDS)
        try:
            sent = self._container_headers(streamed)
            connection.request("POST", "/invocations", body, sent)
            response = connection.getresponse()
            received = {key.lower(): value for key, value in response.getheaders()}
            self.server.exchanges.append(
                Exchange({k.lower(): v for k, v in sent.items()}, response.status, received)
            )
            if response.status >= 400:
                self._model_error(response.status, response.read().decode(errors="replace"))
            elif streamed:
                self._stream(response)
            else:
                self._whole(response)
        finally:
            connection.close()
        return None

    def _container_headers(self, streamed: bool) -> dict[str, str]:
        sent = {name: value for name in _PASSED_ON if (value := self.headers.get(name)) is not None}
        accept = self.headers.get(_PREFIX + "Accept" if streamed else "Accept")
        if accept is not None:
            sent["Accept"] = accept
        api = "InvokeEndpointWithResponseStream" if streamed else "InvokeEndpoint"
        return {**sent, _PREFIX + "Forwarded-Api": api}

    def _whole(self, response: http.client.HTTPResponse) -> None:
        data = response.read()
        self._head(response, {"Content-Type": response.getheader("Content-Type", "")}, len(data))
        self.wfile.write(data)

    def _stream(self, response: http.client.HTTPResponse) -> None:
        """Pass on what comes when it comes, cut at odd places."""
        kind = {
            "Content-Type": "application/vnd.amazon.eventstream",
            _PREFIX + "Content-Type": response.getheader("Content-Type", ""),
        }
        self._head(response, kind, None)
        try:
            for size in itertools.cycle(CUT_SIZES):
                data = response.read1(size)
                if not data:
                    break
                self._chunk(payload_part(data))
        except (http.client.HTTPException, OSError) as error:
            told = f"the container's stream broke: {type(error).__name__}"
            self._chunk(exception("ModelStreamError", {"Message": told, "ErrorCode": "StreamBroken"}))
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _head(self, response: http.client.HTTPResponse, kind: Mapping[str, str], length: int | None) -> None:
        self.send_response(200)
        for name, value in kind.items():
            self.send_header(name, value)
        self.send_header("x-Amzn-Invoked-Production-Variant", VARIANT)
        for name in _HANDED_BACK:
            if (value := response.getheader(name)) is not None:
                self.send_header(name, value)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _model_error(self, status: int, text: str) -> None:
        fields = {
            "Message": f"Received client error ({status}) from primary with message {text!r}",
            "OriginalStatusCode": status,
            "OriginalMessage": text[:_MAX_MESSAGE_CHARS],
            "LogStreamArn": f"arn:aws:logs:us-east-1:000000000000:log-group:/aws/sagemaker/Endpoints/{ENDPOINT}",
        }
        self._error(424, "ModelError", fields)

    def _error(self, status: int, kind: str, fields: Mapping[str, object]) -> None:
        data = json.dumps(fields).encode()
        self.respond(status, data, {"x-amzn-ErrorType": kind, "Content-Type": "application/json"})
