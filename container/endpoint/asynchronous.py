"""Asynchronous invocations: input from S3, an ordinary request to a container, output or failure to S3."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from werkzeug.datastructures import Headers

from container.endpoint.api import ApiError, runtime_refused
from container.endpoint.container_call import ContainerCall
from container.endpoint.endpoint import Endpoint, Report
from container.endpoint.model_data import Connect
from container.endpoint.runtime import Runtime
from container.endpoint.traffic import Lease

OPERATION = "InvokeEndpointAsync"
_MAX_INLINE_BYTES = 128_000
_MAX_BYTES = 1 << 30
"""Limit of an input and of an output in S3."""
_MAX_WAITING = 10_000
_TTL_SECONDS = 21600
_LIMIT_SECONDS = 900
_FAILURES = (BotoCoreError, ClientError)


@dataclass(frozen=True, slots=True)
class _Invocation:
    """An accepted invocation."""

    endpoint: Endpoint
    params: Mapping[str, Any]
    body: bytes
    """Empty if the input is in S3."""
    output: str
    """S3 URI of the response."""
    failure: str | None
    """S3 URI of an error; None if errors are not written."""
    expires: float
    """Monotonic time."""


class AsyncInvocations:
    """Accepts asynchronous invocations, and runs each in a thread once a container may run another one."""

    def __init__(self, runtime: Runtime, connect: Connect, report: Report) -> None:
        self._runtime = runtime
        self._connect = connect
        self._report = report
        self._queues: dict[Endpoint, ThreadPoolExecutor] = {}
        """A thread for each endpoint, which waits for containers."""
        self._lock = threading.Lock()
        """Held so that no endpoint gets a queue after `forget`."""
        self._room = threading.BoundedSemaphore(_MAX_WAITING)

    def invoke(self, endpoint: Endpoint, headers: Headers, body: bytes) -> tuple[dict[str, str], str]:
        """Accept an invocation. Returns the response headers and the inference id. Raises ApiError."""
        params = self._runtime.service.from_headers(OPERATION, endpoint.name, headers)
        config = endpoint.config.get("AsyncInferenceConfig")
        if config is None:
            raise runtime_refused(f"Endpoint {endpoint.name} is not asynchronous; use InvokeEndpoint.")
        _check_input(params, body)
        inference_id: str = params.setdefault("InferenceId", str(uuid.uuid4()))
        output, failure = _locations(config["OutputConfig"], params)
        expires = time.monotonic() + params.get("RequestTTLSeconds", _TTL_SECONDS)
        self._enqueue(_Invocation(endpoint, params, body, output, failure, expires))
        locations = {"OutputLocation": output, "FailureLocation": failure}
        return {f"X-Amzn-SageMaker-{name}": uri for name, uri in locations.items() if uri}, inference_id

    def forget(self, endpoint: Endpoint) -> None:
        """Forget a deleted endpoint. Waiting invocations fail."""
        with self._lock:
            if queue := self._queues.pop(endpoint, None):
                queue.shutdown(wait=False)

    def close(self) -> None:
        """Drop waiting invocations."""
        for queue in self._queues.values():
            queue.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, invocation: _Invocation) -> None:
        """Let an invocation wait for a container. Raises ApiError."""
        with self._lock:
            if not invocation.endpoint.traffic.fleets():
                raise runtime_refused("The endpoint is not in service.")
            if not self._room.acquire(blocking=False):
                raise ApiError(
                    "ServiceUnavailable", f"the queue is full: {_MAX_WAITING} invocations are waiting", 503
                )
            if invocation.endpoint not in self._queues:
                self._queues[invocation.endpoint] = ThreadPoolExecutor(1, "asynchronous")
            self._queues[invocation.endpoint].submit(self._start, invocation)

    def _start(self, invocation: _Invocation) -> None:
        """Wait for a container, and run the invocation in a thread."""
        try:
            lease = invocation.endpoint.traffic.lease_async()
        except ApiError as error:
            self._fail(invocation, error)
        else:
            threading.Thread(target=self._run, args=(invocation, lease)).start()
        finally:
            self._room.release()

    def _run(self, invocation: _Invocation, lease: Lease) -> None:
        try:
            answer, kind = self._answer(invocation, lease)
            _write(self._connect(), invocation.output, answer, kind)
        except (ApiError, *_FAILURES) as error:
            self._fail(invocation, error)

    def _fail(self, invocation: _Invocation, error: Exception) -> None:
        name, inference_id = invocation.endpoint.name, invocation.params["InferenceId"]
        self._report(f"endpoint {name}: asynchronous invocation {inference_id}: {error}")
        try:
            if invocation.failure:
                _write(self._connect(), invocation.failure, str(error).encode(), "text/plain")
        except _FAILURES as second:
            self._report(f"{invocation.failure}: {second}")

    def _answer(self, invocation: _Invocation, lease: Lease) -> tuple[bytes, str]:
        """Return a container's response and its content type, and end the lease. Raises ApiError and S3's errors."""
        traffic, params = invocation.endpoint.traffic, invocation.params
        headers = self._runtime.container_headers(OPERATION, params)
        limit = params.get("InvocationTimeoutSeconds", _LIMIT_SECONDS)
        try:
            if time.monotonic() > invocation.expires:
                raise runtime_refused("RequestTTLSeconds: the request expired in the queue")
            body = invocation.body or _read(self._connect(), params["InputLocation"])
        except BaseException:
            traffic.give_back(lease)
            raise
        lease = replace(lease, started=time.monotonic())  # the latency does not include reading the input
        call = ContainerCall(traffic, lease, headers, body, limit)
        return call.read(_MAX_BYTES), call.content_type


def _check_input(params: Mapping[str, Any], body: bytes) -> None:
    """Raise ApiError unless there is either a short body or an InputLocation."""
    if bool(body) == ("InputLocation" in params):
        raise runtime_refused("InputLocation: set either InputLocation or a body")
    if len(body) > _MAX_INLINE_BYTES:
        raise runtime_refused(f"Body: at most {_MAX_INLINE_BYTES} bytes (got {len(body)}); use InputLocation")


def _locations(config: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the S3 URIs of the response and of an error, if errors are written. config: the `OutputConfig`."""
    inference_id = params["InferenceId"]
    folders = [config["S3OutputPath"].rstrip("/"), params.get("S3OutputPathExtension")]
    output = "/".join([*filter(None, folders), params.get("Filename", f"{inference_id}.out")])
    if "S3FailurePath" not in config:
        return output, None
    return output, f"{config['S3FailurePath'].rstrip('/')}/{inference_id}-error.out"


def _place(location: str) -> dict[str, str]:
    # Not `urlsplit`: a key may contain # and ?.
    bucket, _, key = location.partition("://")[2].partition("/")
    return {"Bucket": bucket, "Key": key}


def _read(client: Any, location: str) -> bytes:
    """Read an object. Raises ApiError if it is too large."""
    found = client.get_object(**_place(location))
    if found["ContentLength"] > _MAX_BYTES:
        raise runtime_refused(f"InputLocation: at most {_MAX_BYTES} bytes (got {found['ContentLength']})")
    data: bytes = found["Body"].read()
    return data


def _write(client: Any, location: str, data: bytes, kind: str) -> None:
    client.put_object(**_place(location), Body=data, ContentType=kind)
