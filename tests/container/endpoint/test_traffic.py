"""Routing of requests to fleets, variants and containers."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from container.endpoint.api import ApiError
from container.endpoint.fleet import Fleet
from container.endpoint.traffic import Traffic
from tests.support.endpoints import FakeLauncher, RunningContainer

REQUESTS = 2000


def make_fleet(config: str = "one", **fields: Any) -> Fleet:
    """Start a fleet. Each keyword argument is a variant with its fields."""

    def variant(name: str) -> dict[str, Any]:
        return {"VariantName": name, "ModelName": "m", "InitialInstanceCount": 1, **fields[name]}

    definition = {
        "EndpointConfigName": config,
        "ProductionVariants": [variant(name) for name in fields if name != "shadow"],
        "ShadowProductionVariants": [variant(name) for name in fields if name == "shadow"],
    }
    fleet = Fleet("endpoint", definition, {"m": {}}, FakeLauncher(lambda container: RunningContainer(1)))
    fleet.start()
    return fleet


def make_traffic(**fields: Any) -> Traffic:
    traffic = Traffic()
    traffic.use(make_fleet(**fields))
    return traffic


def test_variants_get_requests_by_their_weights() -> None:
    traffic = make_traffic(A={"InitialVariantWeight": 9}, B={"InitialVariantWeight": 1})
    counts = Counter(traffic.lease().variant.name for _ in range(REQUESTS))
    assert counts["A"] / REQUESTS == pytest.approx(0.9, abs=0.02)
    assert counts["B"] == REQUESTS - counts["A"]


def test_a_target_variant_overrides_weights_even_zero() -> None:
    traffic = make_traffic(A={}, B={"InitialVariantWeight": 0})
    assert {traffic.lease().variant.name for _ in range(50)} == {"A"}
    assert {traffic.lease("B").variant.name for _ in range(50)} == {"B"}
    with pytest.raises(ApiError, match="Variant C not found; variants: A, B"):
        traffic.lease("C")


def test_without_any_weight_a_target_variant_is_required() -> None:
    traffic = make_traffic(A={"InitialVariantWeight": 0})
    with pytest.raises(ApiError, match="weight of 0"):
        traffic.lease()
    assert traffic.lease("A").variant.name == "A"


def test_containers_share_a_variants_requests() -> None:
    traffic = make_traffic(A={"InitialInstanceCount": 4})
    used = Counter(id(traffic.lease().container) for _ in range(REQUESTS))
    assert len(used) == 4
    assert min(used.values()) > REQUESTS / 4 * 0.8


def test_least_outstanding_requests_balances_containers() -> None:
    routing = {"RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}}
    traffic = make_traffic(A={"InitialInstanceCount": 3, **routing})
    leases = [traffic.lease() for _ in range(9)]
    assert Counter(lease.container.in_flight for lease in leases) == {3: 9}
    traffic.release(leases[4], 200)
    assert traffic.lease().container is leases[4].container


def test_asynchronous_invocations_are_limited_per_container() -> None:
    fleet = make_fleet(A={"InitialInstanceCount": 3})
    fleet.config = {"AsyncInferenceConfig": {"ClientConfig": {"MaxConcurrentInvocationsPerInstance": 2}}}
    traffic = Traffic()
    traffic.use(fleet)
    leases = [traffic.lease_async() for _ in range(6)]
    assert [container.in_flight for container in fleet.containers()] == [2, 2, 2]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(traffic.lease_async)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        traffic.release(leases[3], 200)
        assert waiting.result(200).container is leases[3].container


def test_waiting_for_a_container_ends_when_the_endpoint_stops() -> None:
    traffic = make_traffic(A={})
    for _ in range(4):
        traffic.lease_async()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(traffic.lease_async)
        traffic.use(None)
        with pytest.raises(ApiError, match="not in service"):
            waiting.result(200)


def test_a_variant_without_containers_does_not_block_asynchronous_invocations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("container.endpoint.traffic._REDRAW_SECONDS", 0.01)
    traffic = make_traffic(A={"InitialInstanceCount": 0}, B={})
    assert [traffic.lease_async().variant.name for _ in range(4)] == ["B"] * 4


def test_a_session_stays_with_its_container() -> None:
    traffic = make_traffic(A={"InitialInstanceCount": 5})
    first = traffic.lease(session="NEW_SESSION").container
    traffic.pin("s1", first)
    assert {id(traffic.lease(session="s1").container) for _ in range(30)} == {id(first)}
    traffic.unpin("s1")
    assert len({id(traffic.lease(session="s1").container) for _ in range(50)}) == 5


def test_of_too_many_sessions_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("container.endpoint.traffic._MAX_SESSIONS", 1)
    traffic = make_traffic(A={"InitialInstanceCount": 5})
    container = traffic.lease().container
    for session in ("old", "new"):
        traffic.pin(session, container)
    assert {id(traffic.lease(session="new").container) for _ in range(30)} == {id(container)}
    assert len({id(traffic.lease(session="old").container) for _ in range(50)}) == 5


def test_a_session_stays_with_its_container_beside_other_variants_and_a_new_fleet() -> None:
    traffic, blue = Traffic(), make_fleet("blue", A={}, B={"InitialVariantWeight": 9.0})
    traffic.use(blue, make_fleet("green", A={}, B={}), 0.5)
    (first,) = blue.variants["A"].containers
    traffic.pin("s1", first)
    assert {id(traffic.lease(session="s1").container) for _ in range(30)} == {id(first)}
    assert traffic.lease("B", session="s1").variant.name == "B"
    traffic.remove(blue.variants["A"], [first])
    assert traffic.lease(session="s1").container is not first


@pytest.mark.parametrize(("weight", "share"), [(1.0, 1.0), (0.25, 0.25), (3.0, 1.0)])
def test_a_shadow_variant_gets_copies_by_its_share_of_the_production_weight(
    weight: float, share: float
) -> None:
    traffic = make_traffic(A={}, shadow={"InitialVariantWeight": weight})
    copies = [traffic.lease_shadow() for _ in range(REQUESTS)]
    sent = [copy for copy in copies if copy is not None]
    assert len(sent) / REQUESTS == pytest.approx(share, abs=0.03)
    assert {copy.variant.name for copy in sent} == {"shadow"}
    assert {traffic.lease().variant.name for _ in range(20)} == {"A"}


def test_a_new_fleet_gets_its_share_and_the_old_one_becomes_idle() -> None:
    traffic, blue, green = Traffic(), make_fleet("blue", A={}), make_fleet("green", A={})
    traffic.use(blue)
    running = traffic.lease()
    traffic.use(blue, green, 0.1)
    counts = Counter(traffic.lease().variant.figures.config for _ in range(REQUESTS))
    assert counts["green"] / REQUESTS == pytest.approx(0.1, abs=0.02)
    traffic.use(green)
    for variant in (*blue.variants.values(), *green.variants.values()):
        for container in variant.containers:
            container.in_flight = int(container is running.container)
    old = blue.variants["A"].containers
    assert not traffic.wait_idle(old, 0.0)
    traffic.release(running, 200)
    assert traffic.wait_idle(old, 0.0)


def test_an_endpoint_without_a_fleet_is_not_in_service() -> None:
    with pytest.raises(ApiError, match="not in service"):
        Traffic().lease()
    assert Traffic().lease_shadow() is None
