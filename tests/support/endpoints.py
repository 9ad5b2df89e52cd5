"""`lmi endpoint` in this process with fake containers, for tests of the platform and of boto3 requests."""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from container.endpoint.app import EndpointServer, make_app
from container.endpoint.asynchronous import AsyncInvocations
from container.endpoint.model_data import Connect
from container.endpoint.platform import Platform
from container.endpoint.process import Launcher
from container.endpoint.rollout import AlarmRule
from container.endpoint.runtime import Runtime, TimeLimits
from container.run.local_server import LocalServer
from container.run.serve import CannotListen, listen

ENDPOINT = "my-endpoint"
VARIANT = "AllTraffic"
_HOST = "127.0.0.1"


class RunningContainer(LocalServer):
    """A container that already runs on a port of 127.0.0.1, and keeps running."""

    log = "its log"

    def __init__(self, port: int) -> None:
        self.port = port
        self.in_flight = 0

    def death(self) -> str | None:
        return None

    def wait_healthy(self, limit: float, stopping: threading.Event) -> None:
        """The container is healthy already."""

    def check(self) -> None:
        """The container never hangs."""

    def terminate(self) -> None:
        """The container keeps running."""

    def end(self, seconds: float) -> None:
        """The container keeps running."""


Launch = Callable[[Mapping[str, Any]], LocalServer]
"""Creates a container from its definition."""


class FakeLauncher(Launcher):
    """Launches containers that are not processes."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def launch(self, name: str, container: Mapping[str, Any]) -> LocalServer:
        return self._launch(container)


@dataclass(frozen=True, slots=True)
class EndpointLab:
    """A platform with its HTTP server, and boto3 clients for it."""

    platform: Platform
    url: str
    sagemaker: Any
    runtime: Any

    def deploy(self, more: Mapping[str, Any] | None = None, **variants: Mapping[str, Any]) -> dict[str, Any]:
        """Create models, a configuration `one` and an endpoint. Return its description once it serves or has failed.

        more: further fields of the configuration. variants: fields of each production variant, and `environment` for
        its container.
        """
        self.configure("one", more, **(variants or {VARIANT: {}}))
        self.sagemaker.create_endpoint(EndpointName=ENDPOINT, EndpointConfigName="one")
        return self.wait("InService", "Failed")

    def configure(
        self, config: str, more: Mapping[str, Any] | None = None, **variants: Mapping[str, Any]
    ) -> None:
        """Create models and a configuration. more: further fields of it. The variant `shadow` is a shadow variant."""
        rows = []
        for variant, fields in variants.items():
            model = f"{config}-{variant}"
            environment = fields.get("environment", {})
            self.sagemaker.create_model(
                ModelName=model, PrimaryContainer={"Image": "lmi", "Environment": environment}
            )
            rest = {key: value for key, value in fields.items() if key != "environment"}
            rows.append({"VariantName": variant, "ModelName": model, "InitialInstanceCount": 1, **rest})
        shadows = [row for row in rows if row["VariantName"] == "shadow"]
        self.sagemaker.create_endpoint_config(
            EndpointConfigName=config,
            ProductionVariants=[row for row in rows if row not in shadows],
            **({"ShadowProductionVariants": shadows} if shadows else {}),
            **(more or {}),
        )

    def wait(self, *statuses: str, name: str = ENDPOINT) -> dict[str, Any]:
        """Wait until the endpoint has one of these statuses, and return its description."""
        pause = threading.Event()
        for _ in range(10_000):
            described: dict[str, Any] = self.sagemaker.describe_endpoint(EndpointName=name)
            if described["EndpointStatus"] in statuses:
                return described
            pause.wait(0.02)
        raise AssertionError(f"still {described['EndpointStatus']}: {described.get('FailureReason')}")

    def figures(self) -> dict[str, dict[str, Any]]:
        """The figures of each variant that has any, by name."""
        return {one.variant: one.values() for one in self.platform.figures()}


def client(service: str, url: str) -> Any:
    """A boto3 client for a service at this address."""
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - nobody checks it
        config=Config(retries={"total_max_attempts": 1}, read_timeout=240, max_pool_connections=32),
    )


_client = functools.cache(client)
"""Clients are cached by address: creating one takes longer than most tests."""


@functools.cache
def _port() -> int:
    """The port that all labs of this process use in turn."""
    with listen(_HOST, 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def _listener() -> socket.socket:
    try:
        return listen(_HOST, _port())
    except CannotListen:  # another program has taken the port
        return listen(_HOST, 0)


@contextmanager
def lab(
    launcher: Launcher,
    *,
    alarms: Mapping[str, AlarmRule] | None = None,
    limits: TimeLimits | None = None,
    s3: Connect = lambda: None,
) -> Iterator[EndpointLab]:
    """Serve a platform without endpoints during the block."""
    reports: list[str] = []
    runtime = Runtime(limits or TimeLimits())
    asynchronous = AsyncInvocations(runtime, s3, reports.append)
    platform = Platform(launcher, reports.append, asynchronous.forget)
    platform.alarms.update(alarms or {})
    server = EndpointServer(make_app(platform, runtime, asynchronous, _HOST), _listener())
    server.start()
    clients = [_client(service, server.url) for service in ("sagemaker", "sagemaker-runtime")]
    try:
        yield EndpointLab(platform, server.url, *clients)
    finally:
        asynchronous.close()
        platform.close()
        server.close()


@contextmanager
def endpoint_for_server(port: int, *, deployed: bool = True) -> Iterator[EndpointLab]:
    """Serve a platform with the server on this port as every container. deployed: create an endpoint `my-endpoint`."""
    with lab(FakeLauncher(lambda container: RunningContainer(port))) as running:
        if deployed:
            running.deploy()
        yield running
