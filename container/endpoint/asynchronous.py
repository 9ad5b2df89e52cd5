"""Asynchronous invocations: input from S3, an ordinary request to a container, output or failure to S3."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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


class AsyncInvocations:
    """Accepts asynchronous invocations, and runs each in a thread once a container may run another one."""

    def __init__(self, runtime: Runtime, connect: Connect, report: Report) -> None:
        self._runtime = runtime
        self._connect = connect
        self._report = report
        self._queues: dict[Endpoint, ThreadPoolExecutor] = {}
        """A thread for each endpoint, which waits for containers."""
        self._room = threading.BoundedSemaphore(_MAX_WAITING)

    def invoke(self, endpoint: Endpoint, headers: Headers, body: bytes) -> tuple[dict[str, str], str]:
        """Accept an invocation. Returns the response headers and the inference id. Raises ApiError."""
        params = self._runtime.service.from_headers(OPERATION, endpoint.name, headers)
        config = endpoint.config.get("AsyncInferenceConfig")
        if config is None:
            raise runtime_refused(f"Endpoint {endpoint.name} is not asynchronous; use InvokeEndpoint.")
        if bool(body) == ("InputLocation" in params):
            raise runtime_refused("InputLocation: set either InputLocation or a body")
        if len(body) > _MAX_INLINE_BYTES:
            raise runtime_refused(
                f"Body: at most {_MAX_INLINE_BYTES} bytes (got {len(body)}); use InputLocation"
            )
        if not endpoint.traffic.fleets():
            raise runtime_refused("The endpoint is not in service.")
        if not self._room.acquire(blocking=False):
            raise ApiError(
                "ServiceUnavailable", f"the queue is full: {_MAX_WAITING} invocations are waiting", 503
            )
        inference_id = params.setdefault("InferenceId", str(uuid.uuid4()))
        paths = config["OutputConfig"]
        folders = [paths["S3OutputPath"].rstrip("/"), params.get("S3OutputPathExtension")]
        output = "/".join([*filter(None, folders), params.get("Filename", f"{inference_id}.out")])
        locations = {"X-Amzn-SageMaker-OutputLocation": output}
        failure = None
        if "S3FailurePath" in paths:
            failure = f"{paths['S3FailurePath'].rstrip('/')}/{inference_id}-error.out"
            locations["X-Amzn-SageMaker-FailureLocation"] = failure
        expires = time.monotonic() + params.get("RequestTTLSeconds", _TTL_SECONDS)

        def fail(error: Exception) -> None:
            self._report(f"endpoint {endpoint.name}: asynchronous invocation {inference_id}: {error}")
            try:
                if failure:
                    _write(self._connect(), failure, str(error).encode(), "text/plain")
            except _FAILURES as second:
                self._report(f"{failure}: {second}")

        def run(lease: Lease) -> None:
            try:
                answer, kind = self._answer(endpoint, lease, params, body, expires)
                _write(self._connect(), output, answer, kind)
            except (ApiError, *_FAILURES) as error:
                fail(error)

        def start() -> None:
            try:
                lease = endpoint.traffic.lease_async()
            except ApiError as error:
                fail(error)
            else:
                threading.Thread(target=run, args=(lease,)).start()
            finally:
                self._room.release()

        self._queues.setdefault(endpoint, ThreadPoolExecutor(1, "asynchronous")).submit(start)
        return locations, inference_id

    def close(self) -> None:
        """Drop waiting invocations."""
        for queue in self._queues.values():
            queue.shutdown(wait=False, cancel_futures=True)

    def _answer(
        self, endpoint: Endpoint, lease: Lease, params: Mapping[str, Any], body: bytes, expires: float
    ) -> tuple[bytes, str]:
        """Return a container's response and its content type, and end the lease. Raises ApiError and S3's errors."""
        headers = self._runtime.container_headers(OPERATION, params)
        limit = params.get("InvocationTimeoutSeconds", _LIMIT_SECONDS)
        try:
            if time.monotonic() > expires:
                raise runtime_refused("RequestTTLSeconds: the request expired in the queue")
            body = body or _read(self._connect(), params["InputLocation"])
        except BaseException:
            endpoint.traffic.give_back(lease)
            raise
        lease = replace(lease, started=time.monotonic())  # the latency does not include reading the input
        call = ContainerCall(endpoint.traffic, lease, headers, body, limit)
        return call.read(_MAX_BYTES), call.content_type


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
