"""An endpoint's reaction to containers that die, do not start, or are busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from boto3.exceptions import RetriesExceededError
from s3transfer.exceptions import S3DownloadFailedError

from container.endpoint.endpoint import Endpoint
from container.endpoint.fleet import Fleet
from container.endpoint.rollout import Rollout
from container.run.local_server import NotHealthy
from tests.container.endpoint.fake_containers import FakeContainer
from tests.support.endpoints import FakeLauncher
from tests.support.waiting import wait_until

AT_ONCE = Rollout.of({}, 1, {})
LONG_CANARY = Rollout((0.5, 1.0), 3600.0, 0.0, {})


class Containers:
    """Launches containers, and keeps them by the name of their model."""

    def __init__(self) -> None:
        self.of: dict[str, list[FakeContainer]] = {}
        self.errors: dict[str, Exception] = {}
        """What launching a container of a model raises."""
        self.num_failed = 0

    def __call__(self, container: Mapping[str, Any]) -> FakeContainer:
        if error := self.errors.get(container["Image"]):
            self.num_failed += 1
            raise error
        launched = FakeContainer({})
        self.of.setdefault(container["Image"], []).append(launched)
        return launched


@pytest.fixture
def containers() -> Containers:
    return Containers()


def make_fleet(containers: Containers, *models: str, **fields: Any) -> Fleet:
    """Return a fleet with a variant for each model, named after it. fields: further ones of the configuration."""
    variants = [{"VariantName": model, "ModelName": model} for model in models]
    config = {"EndpointConfigName": "-".join(models), "ProductionVariants": variants, **fields}
    return Fleet("endpoint", config, {model: {"Image": model} for model in models}, FakeLauncher(containers))


@pytest.fixture
def endpoint(containers: Containers) -> Iterator[Endpoint]:
    """An endpoint that serves the model `blue`."""
    created = Endpoint("endpoint", make_fleet(containers, "blue"), lambda line: None)
    created.create()
    wait_status(created, "InService")
    yield created
    created.close()


def wait_status(endpoint: Endpoint, status: str) -> None:
    wait_until(lambda: endpoint.state()["EndpointStatus"] == status)


def replaced(fleet: Fleet, launched: list[FakeContainer]) -> bool:
    """Whether the first container was replaced by a second."""
    return len(launched) == 2 and fleet.containers() == launched[1:]


def test_containers_of_both_fleets_are_replaced_during_an_update(
    endpoint: Endpoint, containers: Containers
) -> None:
    endpoint.update(make_fleet(containers, "green"), LONG_CANARY, {})
    wait_until(lambda: len(endpoint.traffic.fleets()) == 2)
    for model in ("blue", "green"):
        containers.of[model][0].dead = "the container was killed by SIGKILL"
    for fleet, model in zip(endpoint.traffic.fleets(), ("blue", "green"), strict=True):
        wait_until(partial(replaced, fleet, containers.of[model]))
    assert endpoint.state()["EndpointStatus"] == "Updating"


def test_a_dead_container_is_removed_while_another_one_is_replaced(
    endpoint: Endpoint, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_ever(container: FakeContainer, limit: float, stopping: threading.Event) -> None:
        stopping.wait()
        raise NotHealthy("stopped")

    endpoint.update(make_fleet(containers, "a", "b"), AT_ONCE, {})
    wait_status(endpoint, "InService")
    monkeypatch.setattr(FakeContainer, "wait_healthy", wait_for_ever)
    containers.of["a"][0].dead = "the container was killed by SIGKILL"
    wait_until(lambda: len(containers.of["a"]) == 2)
    containers.of["b"][0].dead = "the container was killed by SIGKILL"
    wait_until(lambda: not endpoint.fleet.containers(), seconds=20)


def test_a_container_that_cannot_start_is_retried_ever_less_often(
    endpoint: Endpoint, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Each look at the clock takes a tenth of a second, until the end."""

        now, end = 0.0, 60.0

        def monotonic(self) -> float:
            self.now = min(self.now + 0.1, self.end)
            return self.now

    clock = Clock()
    monkeypatch.setattr("container.endpoint.endpoint.time", clock)
    monkeypatch.setattr("container.endpoint.endpoint._WATCH_SECONDS", 0.001)
    containers.errors["blue"] = OSError("no space left")
    containers.of["blue"][0].dead = "the container was killed by SIGKILL"
    wait_until(lambda: clock.now == clock.end)
    assert 5 <= containers.num_failed <= 7
    containers.errors.clear()
    clock.end = 200.0
    wait_until(lambda: replaced(endpoint.fleet, containers.of["blue"]))


@pytest.mark.parametrize(
    "error",
    [
        OSError("no space left"),
        ValueError("embedded null byte"),
        RetriesExceededError(TimeoutError()),
        S3DownloadFailedError("the object has changed"),
    ],
)
def test_an_update_whose_containers_cannot_be_launched_is_rolled_back(
    error: Exception, endpoint: Endpoint, containers: Containers
) -> None:
    containers.errors["broken"] = error
    endpoint.update(make_fleet(containers, "green", "broken"), LONG_CANARY, {})
    wait_status(endpoint, "InService")
    reason = f"Rolled back to blue: Failed to start a container for production variant broken: {error}"
    assert endpoint.details()["FailureReason"] == reason
    assert containers.of["green"][0].ended
    assert not containers.of["blue"][0].ended


def test_an_update_waits_longer_for_asynchronous_invocations(
    endpoint: Endpoint, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("container.endpoint.endpoint._DRAIN_SECONDS", 0.0)
    endpoint.update(make_fleet(containers, "old", AsyncInferenceConfig={}), AT_ONCE, {})
    wait_status(endpoint, "InService")
    lease = endpoint.traffic.lease()
    endpoint.update(make_fleet(containers, "new"), AT_ONCE, {})
    time.sleep(0.3)
    assert not containers.of["old"][0].ended
    endpoint.traffic.release(lease, 200)
    wait_status(endpoint, "InService")
    assert containers.of["old"][0].ended


def test_scaling_in_waits_for_requests_in_flight(endpoint: Endpoint, containers: Containers) -> None:
    lease = endpoint.traffic.lease()
    endpoint.scale([{"VariantName": "blue", "DesiredInstanceCount": 0}])
    wait_until(lambda: not endpoint.fleet.containers())
    time.sleep(0.3)
    assert not containers.of["blue"][0].ended
    endpoint.traffic.release(lease, 200)
    wait_status(endpoint, "InService")
    assert containers.of["blue"][0].ended


def test_a_container_that_hangs_is_replaced(containers: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("container.endpoint.endpoint.CHECK_INTERVAL", 0.01)
    endpoint = Endpoint("endpoint", make_fleet(containers, "blue"), lambda line: None)
    endpoint.create()
    wait_status(endpoint, "InService")
    containers.of["blue"][0].hang = "the container hangs: no response to /ping (TimeoutError)"
    wait_until(lambda: replaced(endpoint.fleet, containers.of["blue"]))
    endpoint.close()


@pytest.mark.parametrize("change", ["an update", "scaling in"])
def test_containers_that_drain_get_their_time_to_stop_when_the_endpoint_closes(
    change: str, endpoint: Endpoint, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` itself stops them: the thread that drains them ends with the process."""
    monkeypatch.setattr("container.endpoint.endpoint._JOIN_SECONDS", 0.0)
    endpoint.traffic.lease()
    if change == "an update":
        green = make_fleet(containers, "green")
        endpoint.update(green, AT_ONCE, {})
        wait_until(lambda: endpoint.fleet is green)
    else:
        endpoint.scale([{"VariantName": "blue", "DesiredInstanceCount": 0}])
        wait_until(lambda: not endpoint.fleet.containers())
    endpoint.close()
    assert containers.of["blue"][0].ended
