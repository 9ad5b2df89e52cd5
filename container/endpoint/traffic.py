"""Request routing: the fleet by its share in an update, the variant by weight, the container by load or at random."""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from container.endpoint.api import ApiError, runtime_refused
from container.endpoint.figures import ServedRequest
from container.endpoint.fleet import Fleet, FleetVariant
from container.run.local_server import LocalServer

_MAX_SESSIONS = 10_000
_REDRAW_SECONDS = 1.0
"""Longest wait for one variant, as another one may have room."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A container that a request may use until `Traffic.release`."""

    variant: FleetVariant
    container: LocalServer
    started: float
    """Monotonic time."""


class Traffic:
    """Routes the requests of one endpoint and counts the requests in flight. Thread-safe.

    One lock guards the choice of a container and the change of fleets. So a fleet is idle if it gets no new requests
    and has none in flight.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._random = random.Random(0)
        self._shadow_random = random.Random(0)
        self._blue: Fleet | None = None
        self._green: Fleet | None = None
        self._green_share = 0.0
        self._sessions: OrderedDict[str, LocalServer] = OrderedDict()

    def use(self, blue: Fleet | None, green: Fleet | None = None, share: float = 0.0) -> None:
        """Route requests to `blue`, and this share of them to `green`. Without a fleet, requests are refused."""
        with self._changed:
            self._blue, self._green, self._green_share = blue, green, share
            self._changed.notify_all()

    def fleets(self) -> list[Fleet]:
        """Return the fleets that get requests."""
        with self._changed:
            return [fleet for fleet in (self._blue, self._green) if fleet is not None]

    def lease(self, target: str | None = None, session: str | None = None) -> Lease:
        """Choose a container for a request. Raises ApiError.

        target: the variant to use regardless of its weight. session: an id that `pin` has tied to a container.
        """
        with self._changed:
            container = self._sessions.get(session or "")
            for fleet in (self._blue, self._green):
                for variant in fleet.variants.values() if fleet and container else ():
                    if container in variant.containers and target in (None, variant.name):
                        return self._lend(variant, container)
            variant = self._variant(self._fleet(), target)
            return self._lend(variant, self._container(variant))

    def lease_async(self) -> Lease:
        """Wait for a container that may run another asynchronous invocation. Raises ApiError."""
        with self._changed:
            while True:
                fleet = self._fleet()
                variant = self._variant(fleet, None)
                container = min(variant.containers, key=lambda one: one.in_flight, default=None)
                if container is not None and container.in_flight < fleet.max_async_invocations:
                    return self._lend(variant, container)
                self._changed.wait(_REDRAW_SECONDS)

    def lease_shadow(self) -> Lease | None:
        """Choose a container for a copy of a request; None if this request is not copied.

        The share of copied requests is the shadow variant's weight divided by the production variant's.
        """
        with self._changed:
            if self._blue is None:
                return None
            fleet = self._fleet()
            for shadow in fleet.shadows.values():
                weight = sum(variant.weight for variant in fleet.variants.values())
                if shadow.containers and self._shadow_random.random() * weight < shadow.weight:
                    return self._lend(shadow, self._container(shadow))
        return None

    def release(
        self, lease: Lease, status: int, first_byte: float | None = None, abandoned: bool = False
    ) -> None:
        """End a lease and count its request. status, first_byte, abandoned: as in `ServedRequest`."""
        now = time.monotonic()
        lease.variant.figures.record(ServedRequest(now, now - lease.started, first_byte, status, abandoned))
        self.give_back(lease)

    def drop(self, lease: Lease) -> None:
        """End an unused lease of a shadow variant."""
        lease.variant.figures.record_dropped()
        self.give_back(lease)

    def give_back(self, lease: Lease) -> None:
        """End a lease without counting a request."""
        with self._changed:
            lease.container.in_flight -= 1
            self._changed.notify_all()

    def pin(self, session: str, container: LocalServer) -> None:
        """Route further requests of a session to this container."""
        with self._changed:
            self._sessions[session] = container
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def unpin(self, session: str) -> None:
        with self._changed:
            self._sessions.pop(session, None)

    def add(self, variant: FleetVariant, container: LocalServer) -> None:
        """Start routing requests to a container."""
        with self._changed:
            variant.containers.append(container)
            self._changed.notify_all()

    def remove(self, variant: FleetVariant, containers: Iterable[LocalServer]) -> None:
        """Stop routing requests to these containers."""
        with self._changed:
            variant.containers = [one for one in variant.containers if one not in containers]

    def set_weight(self, variant: FleetVariant, weight: float) -> None:
        with self._changed:
            variant.weight = weight

    def wait_idle(self, containers: Iterable[LocalServer], seconds: float) -> bool:
        """Wait until containers that get no more requests have none in flight. Returns False when it times out."""
        watched = list(containers)
        with self._changed:
            return self._changed.wait_for(lambda: not any(one.in_flight for one in watched), seconds)

    def _fleet(self) -> Fleet:
        green = self._green is not None and self._random.random() < self._green_share
        fleet = self._green if green else self._blue
        if fleet is None:
            raise runtime_refused("The endpoint is not in service.")
        return fleet

    def _variant(self, fleet: Fleet, target: str | None) -> FleetVariant:
        if target is not None:
            variant = fleet.variants.get(target)
            if variant is None:
                raise runtime_refused(f"Variant {target} not found; variants: {', '.join(fleet.variants)}")
            return variant
        variants = list(fleet.variants.values())
        weights = [variant.weight for variant in variants]
        if not sum(weights):
            raise runtime_refused("All variants have a weight of 0; name one in TargetVariant.")
        return self._random.choices(variants, weights)[0]

    def _container(self, variant: FleetVariant) -> LocalServer:
        if not variant.containers:
            raise ApiError("ServiceUnavailable", f"Variant {variant.name} has no instance.", 503)
        if variant.least_outstanding:
            return min(variant.containers, key=lambda container: container.in_flight)
        return self._random.choice(variant.containers)

    def _lend(self, variant: FleetVariant, container: LocalServer) -> Lease:
        container.in_flight += 1
        return Lease(variant, container, time.monotonic())
