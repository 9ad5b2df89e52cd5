"""Blue/green updates under load, and rollbacks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from container.endpoint.api import ApiError
from container.endpoint.figures import ServedRequest
from container.endpoint.rollout import AlarmRule, Rollout
from container.endpoint.traffic import Traffic
from tests.container.endpoint.fake_containers import FakeLab, fake_lab
from tests.support.endpoints import ENDPOINT
from tests.support.waiting import wait_until

CLIENTS = 4
ALARMS = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]}}


def deployment(kind: str, wait: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a `DeploymentConfig`."""
    routing = {"Type": kind, "WaitIntervalInSeconds": wait, **fields}
    return {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing}}


def percent(value: int) -> dict[str, Any]:
    return {"Type": "CAPACITY_PERCENT", "Value": value}


@contextmanager
def load(platform: FakeLab) -> Iterator[Counter[str]]:
    """Send requests from several clients during the block. The results are complete after the block."""
    stopped = threading.Event()
    results: Counter[str] = Counter()
    lock = threading.Lock()

    def run() -> None:
        while not stopped.is_set():
            try:
                platform.invoke()["Body"].read()
                result = "ok"
            except ClientError as error:
                result = str(error)
            with lock:
                results[result] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        futures = [pool.submit(run) for _ in range(CLIENTS)]
        try:
            yield results
        finally:
            stopped.set()
    for future in futures:
        future.result()


def wait_results(results: Counter[str], count: int) -> None:
    """Wait until `count` more requests have finished."""
    goal = sum(list(results.values())) + count
    wait_until(lambda: sum(list(results.values())) >= goal)


def update(platform: FakeLab, config: str, policy: dict[str, Any]) -> None:
    platform.sagemaker.update_endpoint(
        EndpointName=ENDPOINT, EndpointConfigName=config, DeploymentConfig=policy
    )


@pytest.mark.parametrize(
    "policy",
    [
        {},
        pytest.param(deployment("CANARY", wait=1, CanarySize=percent(20)), marks=pytest.mark.long),
        pytest.param(deployment("LINEAR", LinearStepSize=percent(50)), marks=pytest.mark.long),
    ],
    ids=["default", "canary", "linear"],
)
def test_no_request_fails_during_an_update(policy: dict[str, Any], platform: FakeLab) -> None:
    platform.deploy(A={"InitialInstanceCount": 2})
    platform.configure("two", A={})
    with load(platform) as results:
        wait_results(results, 50)
        update(platform, "two", policy)
        described = platform.wait("InService")
        # Each client may have a response of the old fleet that is not counted yet.
        wait_results(results, 50 + CLIENTS)
    assert described["EndpointConfigName"] == "two"
    assert described.get("LastDeploymentConfig", {}) == policy
    assert set(results) == {"ok"}
    assert [container.ended for container in platform.containers] == [True, True, False]
    assert len(platform.containers[2].headers) >= 50


def test_the_old_fleet_stops_after_its_requests_finish(platform: FakeLab) -> None:
    platform.deploy(A={"environment": {"HOLD": "1"}})
    platform.configure("two", A={})
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(platform.invoke)
        assert platform.containers[0].arrived.acquire(timeout=200)
        update(platform, "two", {})
        wait_until(lambda: platform.platform.endpoint(ENDPOINT).fleet.config["EndpointConfigName"] == "two")
        assert platform.invoke(b"y")["Body"].read() == b"y"
        assert not platform.containers[0].ended
        assert platform.sagemaker.describe_endpoint(EndpointName=ENDPOINT)["EndpointStatus"] == "Updating"
        platform.containers[0].go.set()
        assert reply.result()["Body"].read() == b"x"
    platform.wait("InService")
    assert platform.containers[0].ended


def test_an_alarm_rolls_back_a_canary(platform: FakeLab) -> None:
    """Only the canary's share of the requests fails."""
    platform.deploy(A={})
    platform.configure("two", A={"environment": {"FAIL": "500"}})
    with load(platform) as results:
        update(platform, "two", {**deployment("CANARY", wait=3600, CanarySize=percent(10)), **ALARMS})
        described = platform.wait("InService")
        wait_results(results, 50)
    assert described["EndpointConfigName"] == "one"
    assert "alarm errors on variant A: 100.0 % of" in described["FailureReason"]
    failed = results.total() - results["ok"]
    assert 0 < failed == len(platform.containers[1].headers)
    assert [container.ended for container in platform.containers] == [False, True]


def test_alarm_thresholds_are_configurable() -> None:
    with fake_lab(alarms={"errors": AlarmRule(error_rate=1.0)}) as platform:
        platform.deploy()
        platform.configure("two", A={"environment": {"FAIL": "500"}})
        with load(platform):
            update(platform, "two", {**deployment("ALL_AT_ONCE", wait=1), **ALARMS})
            described = platform.wait("InService")
        assert described["EndpointConfigName"] == "two"


def test_an_update_can_retain_variant_weights(platform: FakeLab) -> None:
    platform.deploy(A={"InitialVariantWeight": 3}, B={})
    platform.configure("two", A={"InitialInstanceCount": 2}, C={})
    platform.sagemaker.update_endpoint(
        EndpointName=ENDPOINT,
        EndpointConfigName="two",
        RetainAllVariantProperties=True,
        ExcludeRetainedVariantProperties=[{"VariantPropertyType": "DesiredInstanceCount"}],
    )
    rows = platform.wait("InService")["ProductionVariants"]
    assert [(row["VariantName"], row["CurrentWeight"], row["CurrentInstanceCount"]) for row in rows] == [
        ("A", 3.0, 2),
        ("C", 1.0, 1),
    ]


def test_an_update_can_retain_the_deployment_config(platform: FakeLab) -> None:
    platform.configure("one", A={})
    platform.configure("two", A={})
    policy = deployment("CANARY", CanarySize=percent(20))
    platform.sagemaker.create_endpoint(
        EndpointName=ENDPOINT, EndpointConfigName="one", DeploymentConfig=policy
    )
    platform.wait("InService")
    platform.sagemaker.update_endpoint(
        EndpointName=ENDPOINT, EndpointConfigName="two", RetainDeploymentConfig=True
    )
    described = platform.wait("InService")
    assert (described["EndpointConfigName"], described["LastDeploymentConfig"]) == ("two", policy)


def test_the_old_fleet_is_kept_for_the_termination_wait() -> None:
    waits: list[float] = []
    blue: Any = SimpleNamespace()
    green: Any = SimpleNamespace(variants={}, stopping=SimpleNamespace(wait=waits.append))
    policy = {"BlueGreenUpdatePolicy": {"TerminationWaitInSeconds": 3600}}
    traffic = Traffic()
    Rollout.of(policy, 1, {}).run(traffic, blue, green)
    assert waits == [3600]
    assert traffic.fleets() == [green]


def test_only_one_update_at_a_time(platform: FakeLab) -> None:
    platform.deploy(A={})
    platform.configure("two", A={})
    update(platform, "two", deployment("CANARY", wait=3600, CanarySize=percent(10)))
    with pytest.raises(ClientError, match="Cannot update in-progress endpoint"):
        update(platform, "two", {})
    with pytest.raises(ClientError, match="Cannot update in-progress endpoint"):
        platform.sagemaker.delete_endpoint(EndpointName=ENDPOINT)


@pytest.mark.parametrize(
    ("policy", "shares"),
    [
        ({}, (1.0,)),
        (deployment("ALL_AT_ONCE"), (1.0,)),
        (deployment("CANARY", CanarySize=percent(5)), (0.05, 1.0)),
        (deployment("CANARY", CanarySize={"Type": "INSTANCE_COUNT", "Value": 1}), (0.25, 1.0)),
        (deployment("LINEAR", LinearStepSize=percent(30)), (0.3, 0.6, 0.9, 1.0)),
        (deployment("LINEAR", LinearStepSize=percent(10)), tuple(number / 10 for number in range(1, 11))),
        (deployment("LINEAR", LinearStepSize=percent(50)), (0.5, 1.0)),
    ],
)
def test_the_steps_of_an_update(policy: dict[str, Any], shares: tuple[float, ...]) -> None:
    assert Rollout.of(policy, 4, {}).shares == pytest.approx(shares)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (deployment("CANARY"), "CanarySize: missing"),
        (deployment("CANARY", CanarySize=percent(60)), r"at most half of the fleet \(got 60.0 %\)"),
        (deployment("LINEAR", LinearStepSize=percent(9)), r"at least a tenth of the fleet \(got 9\.0 %\)"),
        ({"RollingUpdatePolicy": {}}, "not supported"),
    ],
)
def test_an_unsupported_policy_is_rejected(policy: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        Rollout.of(policy, 4, {})


def test_a_number_of_instances_of_a_fleet_without_any_is_rejected(platform: FakeLab) -> None:
    """A variant may be scaled to 0 instances, and an update may retain that number."""
    platform.deploy(A={})
    platform.configure("two", A={})
    platform.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=ENDPOINT,
        DesiredWeightsAndCapacities=[{"VariantName": "A", "DesiredInstanceCount": 0}],
    )
    platform.wait("InService")
    with pytest.raises(ClientError, match=r"ValidationException.*CanarySize: at most half .* \(got 1 of 0"):
        platform.sagemaker.update_endpoint(
            EndpointName=ENDPOINT,
            EndpointConfigName="two",
            RetainAllVariantProperties=True,
            DeploymentConfig=deployment("CANARY", CanarySize={"Type": "INSTANCE_COUNT", "Value": 1}),
        )
    assert platform.sagemaker.describe_endpoint(EndpointName=ENDPOINT)["EndpointStatus"] == "InService"


def test_a_gradual_update_keeps_the_names_of_the_variants(platform: FakeLab) -> None:
    """SageMaker shifts traffic variant by variant."""
    platform.deploy(A={}, B={})
    platform.configure("two", A={}, C={})
    for policy in (
        deployment("CANARY", CanarySize=percent(20)),
        deployment("LINEAR", LinearStepSize=percent(50)),
    ):
        with pytest.raises(ClientError, match=r"need the same variant names .* \(got A, B; A, C\)"):
            update(platform, "two", policy)
    update(platform, "two", deployment("ALL_AT_ONCE"))
    assert platform.wait("InService")["EndpointConfigName"] == "two"


def served_requests(seconds: float, *statuses: int) -> list[ServedRequest]:
    return [ServedRequest(0.0, seconds, None, status) for status in statuses]


@pytest.mark.parametrize(
    ("rule", "served", "words"),
    [
        (AlarmRule(), served_requests(1.0, 200, 424), None),
        (AlarmRule(), served_requests(1.0, 200, 503), "50.0 % of 2 requests failed"),
        (AlarmRule(), served_requests(1.0, 0), "100.0 % of 1"),
        (AlarmRule(error_rate=0.5), served_requests(1.0, 200, 500), None),
        (AlarmRule(error_rate=0.4, requests=3), served_requests(1.0, 200, 500), None),
        (AlarmRule(latency_p90=2.0), served_requests(3.0, 200), "latency p90 is 3.00 s"),
        (AlarmRule(latency_p90=2.0), served_requests(1.0, 500), None),
        (AlarmRule(latency_p90=2.0), [ServedRequest(0.0, 3.0, 0.1, 200, abandoned=True)], None),
        (AlarmRule(), [], None),
    ],
)
def test_when_an_alarm_is_raised(rule: AlarmRule, served: list[ServedRequest], words: str | None) -> None:
    reason = rule.reason(served)
    assert reason is None if words is None else reason is not None and words in reason


def test_the_deployment_of_a_new_endpoint_is_checked_and_kept(platform: FakeLab) -> None:
    platform.configure("one", A={})
    create = partial(platform.sagemaker.create_endpoint, EndpointName="new", EndpointConfigName="one")
    with pytest.raises(ClientError, match="RollingUpdatePolicy: not supported"):
        create(
            DeploymentConfig={
                "RollingUpdatePolicy": {"MaximumBatchSize": percent(10), "WaitIntervalInSeconds": 1}
            }
        )
    policy = deployment("CANARY", CanarySize=percent(20))
    create(DeploymentConfig=policy)
    assert platform.sagemaker.describe_endpoint(EndpointName="new")["LastDeploymentConfig"] == policy
