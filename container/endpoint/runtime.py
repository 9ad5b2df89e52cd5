"""The runtime API: turns invocations from boto3's `sagemaker-runtime` into requests to a container."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from werkzeug.datastructures import Headers

from container.endpoint import event_stream
from container.endpoint.api import ApiError, runtime_refused
from container.endpoint.container_call import INVOCATIONS, ContainerCall
from container.endpoint.endpoint import Endpoint
from container.endpoint.traffic import Lease
from container.endpoint.validation import Service

WHOLE = "InvokeEndpoint"
STREAM = "InvokeEndpointWithResponseStream"
CHAT = "/v1/chat/completions"
_MAX_COPIES = 64
"""Maximum number of shadow copies in flight; further ones are dropped."""
_PREFIX = "X-Amzn-SageMaker-"
_PASSED_ON = (
    *("ContentType", "Accept", "CustomAttributes", "TargetModel", "InferenceId", "SessionId"),
    *("EnableExplanations", "PrefixAwareId"),
)
"""Parameters that are forwarded to a container as headers; all other headers of a client are dropped."""
_NEW_SESSION = "NEW_SESSION"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds that the platform waits for a container."""

    whole: float = 60.0
    stream: float = 480.0


class Runtime:
    """Invokes endpoints. Thread-safe."""

    def __init__(self, limits: TimeLimits = TimeLimits()) -> None:
        self.service = Service("sagemaker-runtime", runtime_refused)
        self._limits = limits
        self._copies = ThreadPoolExecutor(_MAX_COPIES, "shadow")
        self._free_copies = threading.BoundedSemaphore(_MAX_COPIES)

    def invoke(
        self, endpoint: Endpoint, operation: str, headers: Headers, body: bytes
    ) -> tuple[dict[str, str], bytes | ContainerCall]:
        """Invoke an endpoint. Raises ApiError.

        Returns the response headers, and the whole response or an event stream, which the caller must close.
        """
        params = self._parameters(endpoint, operation, headers)
        passed = self.container_headers(operation, params)
        limit = self._limits.stream if operation == STREAM else self._limits.whole
        session = params.get("SessionId")
        lease = endpoint.traffic.lease(params.get("TargetVariant"), session)
        self._copy(endpoint, passed, body, limit, whole=operation == WHOLE)
        call = ContainerCall(endpoint.traffic, lease, passed, body, limit)
        sent_back = {
            "Content-Type": call.content_type,
            "x-Amzn-Invoked-Production-Variant": lease.variant.name,
            **_header(f"{_PREFIX}Custom-Attributes", call),
        }
        if operation == STREAM:
            types = {"Content-Type": event_stream.CONTENT_TYPE, f"{_PREFIX}Content-Type": call.content_type}
            return {**sent_back, **types}, call
        return {**sent_back, **_session(endpoint, lease, session, call)}, call.read()

    def chat(self, endpoint: Endpoint, headers: Headers, body: bytes) -> tuple[dict[str, str], ContainerCall]:
        """Forward a request on an endpoint's OpenAI path to a container's own path. Raises ApiError.

        Returns the response headers, and the response, which the caller must close.
        """
        params = self._parameters(endpoint, STREAM, headers)
        passed = self._passed_on(params)
        limit = self._limits.stream if _is_streamed(body) else self._limits.whole
        lease = endpoint.traffic.lease(params.get("TargetVariant"), params.get("SessionId"))
        self._copy(endpoint, passed, body, limit, path=CHAT)
        call = ContainerCall(endpoint.traffic, lease, passed, body, limit, CHAT)
        variant = {"x-Amzn-Invoked-Production-Variant": lease.variant.name}
        return {"Content-Type": call.content_type, **variant}, call

    def container_headers(self, operation: str, params: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers of a container's request, given the parameters of an invocation."""
        return {**self._passed_on(params), f"{_PREFIX}Forwarded-Api": operation}

    def _passed_on(self, params: Mapping[str, Any]) -> dict[str, str]:
        names = self.service.header_names(WHOLE)
        return {names[name]: str(params[name]) for name in _PASSED_ON if name in params}

    def _parameters(self, endpoint: Endpoint, operation: str, headers: Headers) -> dict[str, Any]:
        """Return the parameters of an invocation. Raises ApiError."""
        params = self.service.from_headers(operation, endpoint.name, headers)
        if "AsyncInferenceConfig" in endpoint.config:
            raise runtime_refused(f"Endpoint {endpoint.name} is asynchronous; use InvokeEndpointAsync.")
        return params

    def _copy(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes,
        limit: float,
        path: str = INVOCATIONS,
        whole: bool = False,
    ) -> None:
        """Send a copy to the shadow variant, if there is one and this request is selected.

        whole: read the response at once, without noting its first byte.
        """
        lease = endpoint.traffic.lease_shadow()
        if lease is None:
            return
        if not self._free_copies.acquire(blocking=False):
            endpoint.traffic.drop(lease)
            return

        def send() -> None:
            try:
                with contextlib.suppress(ApiError):  # the variant's figures count it
                    call = ContainerCall(endpoint.traffic, lease, headers, body, limit, path)
                    if whole:
                        call.read()
                    else:
                        deque(call.unframed(), maxlen=0)
            finally:
                self._free_copies.release()

        self._copies.submit(send)


def _is_streamed(body: bytes) -> bool:
    """Return whether a request in OpenAI's format asks for a stream."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("stream") is True


def _header(name: str, call: ContainerCall) -> dict[str, str]:
    value = call.header(name)
    return {} if value is None else {name: value}


def _session(endpoint: Endpoint, lease: Lease, session: str | None, call: ContainerCall) -> dict[str, str]:
    """Return headers on a session that the container opened or closed. An open session is pinned to the container."""
    closed = _header(f"{_PREFIX}Closed-Session-Id", call)
    if closed and session:
        endpoint.traffic.unpin(session)
    opened = call.header(f"{_PREFIX}Session-Id")
    if session != _NEW_SESSION or opened is None:
        return closed
    endpoint.traffic.pin(opened.partition(";")[0], lease.container)
    return {**closed, f"{_PREFIX}New-Session-Id": opened}
