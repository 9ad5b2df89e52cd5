"""One endpoint: its fleets and its status, from creation through updates to deletion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from container.endpoint.api import arn, refused
from container.endpoint.figures import VariantFigures
from container.endpoint.fleet import RETRY_SECONDS, Fleet, FleetFailed, FleetVariant
from container.endpoint.rollout import AlarmRaised, Rollout, UpdateAborted
from container.endpoint.traffic import Traffic
from container.run.local_server import CHECK_INTERVAL, LocalServer

_DRAIN_SECONDS = 8 * 60.0
"""Duration of the longest response, a stream."""
_ASYNC_DRAIN_SECONDS = 3600.0
"""Duration of the longest asynchronous invocation, the maximum of `InvocationTimeoutSeconds`."""
_WATCH_SECONDS = 1.0
_MAX_RETRY_SECONDS = 60.0
"""Longest time between two attempts to replace a dead container. Each time is twice the one before."""
_JOIN_SECONDS = 10.0
"""Time at shutdown for a thread that is copying a model."""

Report = Callable[[str], None]
"""Shows a line to the operator."""


class Endpoint:
    """A named endpoint. Changes run in background threads; one lock guards status and fleet."""

    def __init__(self, name: str, fleet: Fleet, report: Report) -> None:
        self.name = name
        self.created = self._modified = time.time()
        self.traffic = Traffic()
        self.figures: list[VariantFigures] = []
        """Figures of all fleets so far, the oldest first."""
        self.last_deployment: Mapping[str, Any] = {}
        """The latest `DeploymentConfig`."""
        self._report = report
        self._lock = threading.RLock()
        self._status = ""
        self._reason: str | None = None
        self.fleet = fleet
        """The fleet in service. Only the endpoint's own threads change it."""
        self._fleets = [fleet]
        """Fleets that have not been stopped."""
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._filling = threading.RLock()
        """Held while a variant grows to its count, so that two threads do not replace the same container."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The endpoint configuration in service."""
        return self.fleet.config

    def state(self) -> dict[str, object]:
        """Return the fields in `list_endpoints`."""
        return {"LastModifiedTime": self._modified, "EndpointStatus": self._status}

    def details(self) -> dict[str, object]:
        """Return the additional fields in `describe_endpoint`."""
        with self._lock:
            optional = {
                "ShadowProductionVariants": [one.describe() for one in self.fleet.shadows.values()],
                "FailureReason": (self._reason or "")[:1024],
                "LastDeploymentConfig": self.last_deployment,
                "AsyncInferenceConfig": self.config.get("AsyncInferenceConfig"),
            }
            return {
                "EndpointConfigName": self.config["EndpointConfigName"],
                "ProductionVariants": [variant.describe() for variant in self.fleet.variants.values()],
                **{name: value for name, value in optional.items() if value},
            }

    def create(self) -> None:
        """Start the first fleet."""
        self._begin("Creating", ("",), self._create)

    def update(self, green: Fleet, rollout: Rollout, deployment: Mapping[str, Any]) -> None:
        """Replace the fleet. Raises ApiError while another change is in progress.

        deployment: the `DeploymentConfig` that `rollout` was read from.
        """
        with self._lock:
            self._begin("Updating", ("InService",), lambda: self._update(green, rollout))
            self._fleets.append(green)
        self.last_deployment = deployment

    def scale(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Change weights and instance counts to `DesiredWeightsAndCapacities`. Raises ApiError."""
        variants = {variant.name: variant for variant in self.fleet.all_variants()}
        for one in wanted:
            if (name := one["VariantName"]) not in variants:
                raise refused(f"Could not find variant {name!r}; variants: {', '.join(variants)}")
        changes = [
            (variants[one["VariantName"]], one.get("DesiredWeight"), one.get("DesiredInstanceCount"))
            for one in wanted
        ]
        self._begin("Updating", ("InService",), lambda: self._scale(changes))

    def delete(self, removed: Callable[[], None]) -> None:
        """Stop all containers, then call `removed`. Raises ApiError while the endpoint is created or updated."""
        self._begin("Deleting", ("InService", "Failed"), lambda: self._delete(removed))

    def close(self) -> None:
        """Stop everything at once: containers get SIGTERM, then SIGKILL after 30 s."""
        self._stopping.set()
        self.traffic.use(None)
        fleets = tuple(self._fleets)
        with ThreadPoolExecutor(len(fleets) or 1) as pool:
            list(pool.map(Fleet.stop, fleets))
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _begin(self, status: str, before: Sequence[str], work: Callable[[], None]) -> None:
        """Run `work` in a thread. Raises ApiError unless the status is one of `before`."""
        with self._lock:
            if self._status not in before:
                kind = "failed" if self._status == "Failed" else "in-progress"
                raise refused(f'Cannot update {kind} endpoint "{arn("endpoint", self.name)}".')
            self._set(status)
            self._start_thread(work)

    def _start_thread(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(threading.Thread(target=self._run, args=(work,), daemon=True))
            self._threads[-1].start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # top of a thread: the status would never change again
            self._set("Failed", f"{type(error).__name__}: {error}")

    def _set(self, status: str, reason: str | None = None) -> None:
        with self._lock:
            self._status, self._reason, self._modified = status, reason, time.time()
        if not self._stopping.is_set():
            self._report(f"endpoint {self.name}: {status}" + (f": {reason}" if reason else ""))

    def _start(self, fleet: Fleet) -> None:
        """Start a fleet and keep its figures. Raises FleetFailed."""
        self.figures += [variant.figures for variant in fleet.all_variants()]
        fleet.start()

    def _create(self) -> None:
        try:
            self._start(self.fleet)
        except FleetFailed as error:
            self._set("Failed", str(error))
            return
        self.traffic.use(self.fleet)
        self._set("InService")
        self._start_thread(lambda: self._watch(self._refill))
        threading.Thread(target=self._check, daemon=True).start()  # `close` need not wait for its pings
        self._watch(self._remove_dead)

    def _update(self, green: Fleet, rollout: Rollout) -> None:
        blue = self.fleet
        try:
            self._start(green)
            rollout.run(self.traffic, blue, green)
        except (FleetFailed, AlarmRaised) as error:
            self.traffic.use(blue)
            self._set("RollingBack", str(error))
            self._retire(green)
            self._set("InService", f"Rolled back to {blue.config['EndpointConfigName']}: {error}")
        except UpdateAborted:
            return
        else:
            with self._lock:
                self.fleet = green
            self._retire(blue)
            self._set("InService")

    def _scale(self, changes: Sequence[tuple[FleetVariant, float | None, int | None]]) -> None:
        reason = None
        for variant, weight, count in changes:
            if weight is not None:
                self.traffic.set_weight(variant, weight)
            if count is None:
                continue
            with self._filling:
                before, variant.count = variant.count, count
                try:
                    self._fill(self.fleet, variant)
                except FleetFailed as error:
                    variant.count, reason = before, str(error)
            surplus = variant.containers[variant.count :]
            self.traffic.remove(variant, surplus)
            self._drain(self.fleet, surplus)
            self.fleet.end(surplus)
        self._set("InService", reason)

    def _delete(self, removed: Callable[[], None]) -> None:
        self.traffic.use(None)
        for fleet in tuple(self._fleets):
            self._retire(fleet)
        removed()

    def _retire(self, fleet: Fleet) -> None:
        """Stop a fleet that gets no more requests, after those in flight."""
        self._drain(fleet, fleet.containers())
        fleet.stop()
        with self._lock:
            self._fleets.remove(fleet)

    def _drain(self, fleet: Fleet, containers: Sequence[LocalServer]) -> None:
        """Wait until containers of a fleet that get no more requests are idle."""
        limit = _ASYNC_DRAIN_SECONDS if "AsyncInferenceConfig" in fleet.config else _DRAIN_SECONDS
        deadline = time.monotonic() + limit
        while not self._stopping.is_set() and time.monotonic() < deadline:
            if self.traffic.wait_idle(containers, _WATCH_SECONDS):
                return

    def _watch(self, work: Callable[[Fleet, FleetVariant], None]) -> None:
        """Call `work` every second for each variant of the fleets that get requests."""
        while self._status != "Deleting" and not self._stopping.wait(_WATCH_SECONDS):
            for fleet in self.traffic.fleets():
                for variant in fleet.all_variants():
                    work(fleet, variant)

    def _check(self) -> None:
        """Notice containers that hang, in a thread of its own because each check may take 10 s."""
        while self._status != "Deleting" and not self._stopping.wait(CHECK_INTERVAL):
            for fleet in self.traffic.fleets():
                for container in fleet.containers():
                    container.check()

    def _remove_dead(self, fleet: Fleet, variant: FleetVariant) -> None:
        dead = [one for one in variant.containers if one.death() is not None]
        self.traffic.remove(variant, dead)
        for container in dead:
            self._report(f"endpoint {self.name}: variant {variant.name}: {container.death()}; replacing it")
            fleet.end([container], 0.0)

    def _refill(self, fleet: Fleet, variant: FleetVariant) -> None:
        """Replace removed containers. It waits until they are healthy, so a thread of its own calls it."""
        if time.monotonic() < variant.retry_at:
            return
        try:
            self._fill(fleet, variant)
        except FleetFailed as error:
            variant.retry_at = time.monotonic() + variant.retry_seconds
            variant.retry_seconds = min(2 * variant.retry_seconds, _MAX_RETRY_SECONDS)
            self._report(f"endpoint {self.name}: {error}")

    def _fill(self, fleet: Fleet, variant: FleetVariant) -> None:
        """Start the containers that a variant lacks. Raises FleetFailed."""
        with self._filling:
            while len(variant.containers) < variant.count and not fleet.stopping.is_set():
                container = fleet.grow(variant)
                self.traffic.add(variant, container)
                if fleet.stopping.is_set():  # the fleet was retired meanwhile
                    fleet.end([container])
            variant.retry_at, variant.retry_seconds = 0.0, RETRY_SECONDS
