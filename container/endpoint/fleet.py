"""Containers that serve one endpoint configuration: its variants, each with its instances."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from container.endpoint.figures import VariantFigures
from container.endpoint.model_data import NoModelData
from container.endpoint.process import Launcher
from container.run.local_server import STOP_SECONDS, LocalServer, NotHealthy, stop_all

_STARTUP_SECONDS = 480.0
"""Default of `ContainerStartupHealthCheckTimeoutInSeconds`."""
_ASYNC_INVOCATIONS = 4
"""Default of `MaxConcurrentInvocationsPerInstance`."""


RETRY_SECONDS = 1.0
"""Time between the first two attempts to replace a dead container."""


class FleetFailed(Exception):
    """A fleet did not start. The message is the `FailureReason`."""


@dataclass(slots=True)
class FleetVariant:
    """A variant of a fleet. `Traffic` reads weight and containers; `Endpoint` changes them."""

    definition: Mapping[str, Any]
    """Definition of the variant, as in `create_endpoint_config`."""
    container: Mapping[str, Any]
    """The container definition of its model, as in `create_model`."""
    figures: VariantFigures
    weight: float
    count: int
    """Desired number of containers."""
    containers: list[LocalServer] = field(default_factory=list)
    retry_at: float = 0.0
    """Monotonic time before which no dead container is replaced, because the last attempt failed."""
    retry_seconds: float = RETRY_SECONDS
    """Time to wait if the next attempt fails."""

    @property
    def name(self) -> str:
        return str(self.definition["VariantName"])

    @property
    def least_outstanding(self) -> bool:
        """Whether to choose the container with the fewest requests in flight instead of a random one."""
        strategy: str = self.definition.get("RoutingConfig", {}).get("RoutingStrategy", "RANDOM")
        return strategy != "RANDOM"

    def describe(self) -> dict[str, object]:
        """Return an item of `ProductionVariants` in `describe_endpoint`."""
        return {
            "VariantName": self.name,
            "CurrentWeight": self.weight,
            "DesiredWeight": self.weight,
            "CurrentInstanceCount": len(self.containers),
            "DesiredInstanceCount": self.count,
        }


class Fleet:
    """The variants of an endpoint configuration with their containers."""

    def __init__(
        self,
        endpoint: str,
        config: Mapping[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        launcher: Launcher,
    ) -> None:
        """models: the container definition of each model of the configuration, by name."""
        self.config = config
        self.stopping = threading.Event()
        """Set to stop the fleet. Containers that are still starting are abandoned."""
        self._endpoint = endpoint
        self._launcher = launcher
        self._running: set[LocalServer] = set()
        """All containers that have not been stopped, also those that get no requests: they start or drain."""
        self.variants = self._make(config["ProductionVariants"], models, shadow=False)
        self.shadows = self._make(config.get("ShadowProductionVariants", ()), models, shadow=True)

    def _make(
        self, definitions: Any, models: Mapping[str, Mapping[str, Any]], shadow: bool
    ) -> dict[str, FleetVariant]:
        config = self.config["EndpointConfigName"]
        return {
            one["VariantName"]: FleetVariant(
                one,
                models[one["ModelName"]],
                VariantFigures(self._endpoint, config, one["VariantName"], shadow),
                one.get("InitialVariantWeight", 1.0),
                one.get("InitialInstanceCount", 1),
            )
            for one in definitions
        }

    @property
    def max_async_invocations(self) -> int:
        """Maximum asynchronous invocations in flight per container."""
        client = self.config.get("AsyncInferenceConfig", {}).get("ClientConfig", {})
        return int(client.get("MaxConcurrentInvocationsPerInstance", _ASYNC_INVOCATIONS))

    def all_variants(self) -> Iterator[FleetVariant]:
        yield from self.variants.values()
        yield from self.shadows.values()

    def containers(self) -> list[LocalServer]:
        return [container for variant in self.all_variants() for container in variant.containers]

    def start(self) -> None:
        """Start all containers and wait until all are healthy. On failure, stops all and raises FleetFailed."""
        try:
            for variant in self.all_variants():
                for _ in range(variant.count):
                    variant.containers.append(self._launch(variant))
            for variant in self.all_variants():
                for container in variant.containers:
                    self._wait_healthy(variant, container)
        except BaseException:
            self.stop()
            raise

    def grow(self, variant: FleetVariant) -> LocalServer:
        """Start one more container and wait until it is healthy; it gets no requests yet. Raises FleetFailed."""
        container = self._launch(variant)
        try:
            self._wait_healthy(variant, container)
        except BaseException:
            self.end([container])
            raise
        return container

    def _launch(self, variant: FleetVariant) -> LocalServer:
        try:
            container = self._launcher.launch(f"{self._endpoint}-{variant.name}", variant.container)
        except Exception as error:  # whatever it is, an update must be rolled back
            failed = "download model data" if isinstance(error, NoModelData) else "start a container"
            raise FleetFailed(f"Failed to {failed} for production variant {variant.name}: {error}") from error
        self._running.add(container)
        return container

    def _wait_healthy(self, variant: FleetVariant, container: LocalServer) -> None:
        limit = variant.definition.get("ContainerStartupHealthCheckTimeoutInSeconds", _STARTUP_SECONDS)
        try:
            container.wait_healthy(limit, self.stopping)
        except NotHealthy as error:
            raise FleetFailed(
                f"The primary container for production variant {variant.name} did not pass the ping health check: "
                f"{error}. Its log: {container.log}"
            ) from error

    def end(self, containers: Sequence[LocalServer], seconds: float = STOP_SECONDS) -> None:
        """Stop containers: SIGTERM, then SIGKILL after `seconds`."""
        stop_all(containers, seconds)
        self._running.difference_update(containers)

    def stop(self) -> None:
        """Stop all containers, also those that drain."""
        self.stopping.set()
        self.end(tuple(self._running))
        for variant in self.all_variants():
            variant.containers.clear()
