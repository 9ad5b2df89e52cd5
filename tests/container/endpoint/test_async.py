"""Asynchronous invocations with requests and responses in S3."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from container.endpoint import asynchronous
from tests.container.endpoint.fake_containers import FakeLab, fake_lab
from tests.container.endpoint.fake_s3 import FakeS3
from tests.support.endpoints import ENDPOINT
from tests.support.waiting import wait_until


@pytest.fixture
def platform(s3: FakeS3) -> Iterator[FakeLab]:
    with fake_lab(s3=lambda: s3.client) as running:
        yield running


def deploy(platform: FakeLab, **variant: Any) -> None:
    output = {"S3OutputPath": "s3://bucket/out/", "S3FailurePath": "s3://bucket/failed/"}
    config = {"OutputConfig": output, "ClientConfig": {"MaxConcurrentInvocationsPerInstance": 1}}
    platform.deploy({"AsyncInferenceConfig": config}, A=variant)


def wait_object(server: FakeS3, location: str) -> bytes:
    """Wait for an object and return it."""
    name = location.removeprefix("s3://")
    wait_until(lambda: name in server.objects)
    return server.objects[name]


def test_the_response_is_written_to_s3(platform: FakeLab, s3: FakeS3) -> None:
    deploy(platform)
    s3.objects["bucket/in/one"] = b"question"
    reply = platform.runtime.invoke_endpoint_async(
        EndpointName=ENDPOINT,
        InputLocation="s3://bucket/in/one",
        ContentType="text/x-any",
        InferenceId="id-1",
    )
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert reply["InferenceId"] == "id-1"
    assert reply["OutputLocation"] == "s3://bucket/out/id-1.out"
    assert reply["FailureLocation"] == "s3://bucket/failed/id-1-error.out"
    assert wait_object(s3, reply["OutputLocation"]) == b"question"
    assert platform.containers[0].headers[0]["content-type"] == "text/x-any"


def test_a_short_body_can_be_inline(platform: FakeLab, s3: FakeS3) -> None:
    deploy(platform)
    reply = platform.runtime.invoke_endpoint_async(
        EndpointName=ENDPOINT, Body=b"question", Filename="a.json", S3OutputPathExtension="today"
    )
    assert reply["OutputLocation"] == "s3://bucket/out/today/a.json"
    assert wait_object(s3, reply["OutputLocation"]) == b"question"


@pytest.mark.parametrize(
    ("environment", "location", "words"),
    [
        ({"FAIL": "500"}, "s3://bucket/in", b"Received server error (500) from primary"),
        ({}, "s3://bucket/none", b"NoSuchKey"),
    ],
)
def test_an_error_is_written_to_the_failure_location(
    environment: dict[str, str], location: str, words: bytes, platform: FakeLab, s3: FakeS3
) -> None:
    deploy(platform, environment=environment)
    s3.objects["bucket/in"] = b"question"
    reply = platform.runtime.invoke_endpoint_async(EndpointName=ENDPOINT, InputLocation=location)
    assert words in wait_object(s3, reply["FailureLocation"])
    assert reply["OutputLocation"].removeprefix("s3://") not in s3.objects


def test_invocations_wait_for_a_container_which_may_be_added_later(platform: FakeLab, s3: FakeS3) -> None:
    deploy(platform, environment={"HOLD": "1"})
    replies = [platform.runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=b"x") for _ in range(3)]
    assert platform.containers[0].arrived.acquire(timeout=200)
    assert not platform.containers[0].arrived.acquire(timeout=0.05)
    platform.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=ENDPOINT,
        DesiredWeightsAndCapacities=[{"VariantName": "A", "DesiredInstanceCount": 2}],
    )
    wait_until(lambda: len(platform.containers) == 2)
    assert platform.containers[1].arrived.acquire(timeout=200)
    assert not any(container.arrived.acquire(timeout=0.05) for container in platform.containers)
    for container in platform.containers:
        container.go.set()
    assert all(wait_object(s3, reply["OutputLocation"]) == b"x" for reply in replies)


def test_only_waiting_invocations_take_places_in_the_queue(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous, "_MAX_WAITING", 2)
    with fake_lab(s3=lambda: s3.client) as platform:
        deploy(platform)
        for _ in range(4):
            reply = platform.runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=b"x")
            assert wait_object(s3, reply["OutputLocation"]) == b"x"


def test_an_invocation_that_waits_longer_than_its_ttl_fails(
    platform: FakeLab, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = 0.0
    monkeypatch.setattr(asynchronous, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + offset))
    deploy(platform, environment={"HOLD": "1"})
    running, expired, waiting = (
        platform.runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=b"x", RequestTTLSeconds=seconds)
        for seconds in (60, 60, 7200)
    )
    assert platform.containers[0].arrived.acquire(timeout=200)
    offset = 3600.0
    platform.containers[0].go.set()
    for reply in (running, waiting):
        assert wait_object(s3, reply["OutputLocation"]) == b"x"
    locations = [expired[name].removeprefix("s3://") for name in ("OutputLocation", "FailureLocation")]
    wait_until(lambda: any(location in s3.objects for location in locations))
    assert s3.objects.get(locations[1]) == b"RequestTTLSeconds: the request expired in the queue"


def test_invalid_calls_raise_validation_errors(platform: FakeLab) -> None:
    deploy(platform)
    api = platform.runtime
    for params, words in (
        ({}, "either InputLocation or a body"),
        ({"InputLocation": "s3://bucket/in", "Body": b"x"}, "either InputLocation or a body"),
        ({"Body": bytes(128_001)}, "at most 128000 bytes"),
        ({"InputLocation": "ftp://bucket/in"}, "regular expression"),
        ({"Body": b"x", "InvocationTimeoutSeconds": 3601}, "at most 3600"),
    ):
        with pytest.raises(api.exceptions.ValidationError, match=words):
            api.invoke_endpoint_async(EndpointName=ENDPOINT, **params)
    with pytest.raises(api.exceptions.ValidationError, match="use InvokeEndpointAsync"):
        api.invoke_endpoint(EndpointName=ENDPOINT, Body=b"x")


def test_an_endpoint_that_is_not_in_service_refuses_invocations(platform: FakeLab, s3: FakeS3) -> None:
    deploy(platform, environment={"UNHEALTHY": "it is broken"})
    api = platform.runtime
    with pytest.raises(api.exceptions.ValidationError, match="The endpoint is not in service"):
        api.invoke_endpoint_async(EndpointName=ENDPOINT, Body=b"question")
    assert s3.objects == {}


def test_a_deleted_endpoint_leaves_no_thread(platform: FakeLab, s3: FakeS3) -> None:
    deploy(platform)
    for number in range(3):
        if number:
            platform.sagemaker.create_endpoint(EndpointName=ENDPOINT, EndpointConfigName="one")
            platform.wait("InService")
        reply = platform.runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=b"x")
        wait_object(s3, reply["OutputLocation"])
        platform.sagemaker.delete_endpoint(EndpointName=ENDPOINT)
        wait_until(lambda: not exists(platform))
    wait_until(lambda: not any(one.name.startswith("asynchronous") for one in threading.enumerate()))


def exists(platform: FakeLab) -> bool:
    try:
        platform.sagemaker.describe_endpoint(EndpointName=ENDPOINT)
    except ClientError:
        return False
    return True


def test_invocations_that_wait_for_a_container_fail_when_their_endpoint_is_deleted(
    platform: FakeLab, s3: FakeS3
) -> None:
    deploy(platform, environment={"HOLD": "1"})
    replies = [platform.runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=b"x") for _ in range(2)]
    assert platform.containers[0].arrived.acquire(timeout=200)
    platform.sagemaker.delete_endpoint(EndpointName=ENDPOINT)
    assert b"not in service" in wait_object(s3, replies[1]["FailureLocation"])
    platform.containers[0].go.set()
    assert wait_object(s3, replies[0]["OutputLocation"]) == b"x"


@pytest.mark.parametrize("name", ["a#1", "a?b=c", "a%20b", "one two"])
def test_names_of_objects_may_have_any_character(platform: FakeLab, s3: FakeS3, name: str) -> None:
    deploy(platform)
    s3.objects[f"bucket/in/{name}"] = b"question"
    reply = platform.runtime.invoke_endpoint_async(
        EndpointName=ENDPOINT, InputLocation=f"s3://bucket/in/{name}", InferenceId=name.replace(" ", "_")
    )
    assert wait_object(s3, reply["OutputLocation"]) == b"question"
