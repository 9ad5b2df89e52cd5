"""Invocations with the `sagemaker-runtime` client of boto3."""

from __future__ import annotations

import http.client
import json
import math
import time
from contextlib import closing
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from botocore.exceptions import EventStreamError

from container.endpoint import container_call, runtime
from container.endpoint.container_call import MAX_BODY_BYTES, ContainerCall
from container.endpoint.event_stream import payload_part
from container.endpoint.runtime import TimeLimits
from tests.container.endpoint.fake_containers import FakeLab, fake_lab
from tests.support.endpoints import ENDPOINT
from tests.support.waiting import wait_until

LINES = b'{"token": 1}\n{"token": 2}\n{"token": 3}\n'


@pytest.fixture
def served(platform: FakeLab) -> FakeLab:
    platform.deploy()
    return platform


def test_body_and_headers_are_forwarded_in_both_directions(served: FakeLab) -> None:
    reply = served.runtime.invoke_endpoint(
        EndpointName=ENDPOINT,
        Body=b"\x00\xffbytes",
        ContentType="application/x-any",
        Accept="application/json",
        CustomAttributes="a=b",
        InferenceId="id-1",
        TargetModel="model-1.tar.gz",
    )
    assert reply["Body"].read() == b"\x00\xffbytes"
    assert reply["ContentType"] == "application/x-any"
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    assert reply["CustomAttributes"] == "a=b"
    headers = served.containers[0].headers[0]
    assert headers["accept"] == "application/json"
    assert headers["x-amzn-sagemaker-inference-id"] == "id-1"
    assert headers["x-amzn-sagemaker-target-model"] == "model-1.tar.gz"
    assert headers["x-amzn-sagemaker-forwarded-api"] == "InvokeEndpoint"
    assert not {"authorization", "x-amz-date", "user-agent"} & set(headers)


def test_a_stream_is_sent_in_events_that_may_split_lines(served: FakeLab) -> None:
    reply = served.runtime.invoke_endpoint_with_response_stream(
        EndpointName=ENDPOINT, Body=LINES, Accept="application/jsonlines"
    )
    assert reply["ContentType"] == "application/jsonlines"
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    with closing(reply["Body"]) as events:
        received = [event["PayloadPart"]["Bytes"] for event in events]
    assert b"".join(received) == LINES
    assert not all(part.endswith(b"\n") for part in received)
    headers = served.containers[0].headers[0]
    assert headers["accept"] == "application/jsonlines"
    assert headers["x-amzn-sagemaker-forwarded-api"] == "InvokeEndpointWithResponseStream"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("status", "who"), [(424, "client"), (500, "server")])
def test_a_container_error_raises_model_error(
    streamed: bool, status: int, who: str, platform: FakeLab
) -> None:
    platform.deploy(A={"environment": {"FAIL": str(status)}})
    api = platform.runtime
    call = api.invoke_endpoint_with_response_stream if streamed else api.invoke_endpoint
    with pytest.raises(api.exceptions.ModelError) as caught:
        call(EndpointName=ENDPOINT, Body=b"x")
    reply = caught.value.response
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert reply["OriginalStatusCode"] == status
    assert reply["OriginalMessage"] == f'{{"error": "as asked", "code": {status}}}'
    assert reply["Error"]["Message"].startswith(f"Received {who} error ({status}) from primary with message")
    assert platform.figures()["A"]["errors"] == 1


def test_a_container_timeout_raises_model_error() -> None:
    with fake_lab(limits=TimeLimits(whole=0.05, stream=0.05)) as platform:
        platform.deploy(A={"environment": {"HOLD": "1"}})
        with pytest.raises(platform.runtime.exceptions.ModelError) as caught:
            platform.invoke()
        platform.containers[0].go.set()
        assert caught.value.response["OriginalStatusCode"] == 0
        assert "Your invocation timed out" in caught.value.response["Error"]["Message"]


@pytest.mark.parametrize(
    ("behavior", "words", "expected"),
    [
        ("BREAK", "ModelStreamError", LINES),
        ("STALL", "ended early: TimeoutError", b'{"token": 1}\n'),
    ],
)
def test_a_stream_that_breaks_or_times_out_raises_model_stream_error(
    behavior: str, words: str, expected: bytes, platform: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    if behavior == "STALL":
        time_out_after_the_first_payload(monkeypatch)
    platform.deploy(A={"environment": {behavior: "1"}})
    reply = platform.runtime.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=LINES)
    received: list[bytes] = []
    with closing(reply["Body"]) as events, pytest.raises(EventStreamError, match=words):
        received.extend(event["PayloadPart"]["Bytes"] for event in events)
    platform.containers[0].go.set()
    assert b"".join(received) == expected
    assert platform.figures()["A"]["errors"] == 1


def test_a_response_that_breaks_off_raises_model_error(platform: FakeLab) -> None:
    platform.deploy(A={"environment": {"BREAK": "1"}})
    with pytest.raises(platform.runtime.exceptions.ModelError, match="could not load the entire response"):
        platform.invoke()
    assert platform.figures()["A"]["errors"] == 1


def test_a_response_over_the_limit_raises_model_error(
    served: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ContainerCall.read
    monkeypatch.setattr(ContainerCall, "read", lambda call: read(call, 5))
    assert served.invoke(b"short")["Body"].read() == b"short"
    with pytest.raises(served.runtime.exceptions.ModelError, match="more than 5 bytes") as caught:
        served.invoke(b"too long")
    assert caught.value.response["OriginalStatusCode"] == 200
    figures = served.figures()["AllTraffic"]
    assert (figures["requests"], figures["errors"]) == (2, 1)


def time_out_after_the_first_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock at the first payload, so that the test does not depend on the speed of the machine."""
    offset = 0.0

    def advance_clock(data: bytes) -> bytes:
        nonlocal offset
        offset = 1000.0
        return payload_part(data)

    monkeypatch.setattr(container_call, "payload_part", advance_clock)
    monkeypatch.setattr(container_call, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + offset))


def test_a_client_that_disconnects_from_a_stream_frees_the_container(platform: FakeLab) -> None:
    platform.deploy(A={"environment": {"STALL": "1"}})
    reply = platform.runtime.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=LINES * 100)
    with closing(reply["Body"]) as events:
        next(iter(events))
        assert platform.containers[0].in_flight == 1
    platform.containers[0].go.set()
    wait_until(lambda: not platform.containers[0].in_flight)
    wait_until(lambda: platform.figures()["A"]["requests"] == 1)
    figures = platform.figures()["A"]
    assert figures["errors"] == 0
    assert math.isnan(figures["latency"].p50), "an abandoned stream is not a fast response"


def test_invalid_calls_raise_validation_errors(served: FakeLab) -> None:
    api = served.runtime
    for params, words in (
        ({"EndpointName": "another"}, "Endpoint another not found."),
        ({"EndpointName": ENDPOINT, "TargetVariant": "B"}, "Variant B not found"),
        ({"EndpointName": ENDPOINT, "CustomAttributes": "a" * 1025}, "at most 1024"),
        ({"EndpointName": ENDPOINT, "InferenceComponentName": "c"}, "InferenceComponentName: not supported"),
    ):
        with pytest.raises(api.exceptions.ValidationError, match=words):
            api.invoke_endpoint(Body=b"x", **params)
    with pytest.raises(api.exceptions.ValidationError, match="not asynchronous"):
        api.invoke_endpoint_async(EndpointName=ENDPOINT, InputLocation="s3://bucket/key")
    assert served.containers[0].headers == []


def test_a_body_over_the_limit_is_rejected_after_it_was_read_to_its_end(served: FakeLab) -> None:
    """Otherwise a client that sends it slowly gets a connection reset instead of the response."""
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=200)
    connection.putrequest("POST", f"/endpoints/{ENDPOINT}/invocations")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    for chunk in (bytes(MAX_BODY_BYTES), b"x"):
        time.sleep(0.1)
        connection.send(chunk)
    response = connection.getresponse()
    assert response.status == 413
    assert response.getheader("x-amzn-ErrorType") is None, "boto3 uses the status as the error's code"
    assert json.load(response) == {"Message": "HTTP content length exceeded 26214400 bytes."}
    connection.close()
    assert served.containers[0].headers == []


def test_a_session_id_is_returned_and_the_session_is_sticky(platform: FakeLab) -> None:
    platform.deploy(A={"InitialInstanceCount": 3})
    api = platform.runtime
    reply = api.invoke_endpoint(EndpointName=ENDPOINT, Body=b"x", SessionId="NEW_SESSION")
    assert reply["NewSessionId"] == "s1; Expires=2030-01-01T00:00:00Z"
    for _ in range(5):
        api.invoke_endpoint(EndpointName=ENDPOINT, Body=b"x", SessionId="s1")
    assert sorted(len(container.headers) for container in platform.containers) == [0, 0, 6]


def test_a_shadow_variant_gets_copies_and_its_responses_are_dropped(platform: FakeLab) -> None:
    platform.deploy(A={}, shadow={"environment": {"FAIL": "500"}})
    for _ in range(10):
        reply = platform.invoke()
        assert reply["Body"].read() == b"x"
        assert reply["InvokedProductionVariant"] == "A"
    wait_until(lambda: platform.figures()["shadow"]["requests"] == 10)
    figures = platform.figures()
    assert (figures["A"]["requests"], figures["A"]["errors"]) == (10, 0)
    assert (figures["shadow"]["requests"], figures["shadow"]["errors"]) == (10, 10)


def test_a_copy_that_has_ended_leaves_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_MAX_COPIES", 1)
    with fake_lab(limits=TimeLimits(200.0, 200.0)) as platform:
        platform.deploy(A={}, shadow={})
        wait_until(lambda: platform.invoke() and platform.figures()["shadow"]["requests"] >= 3, seconds=30.0)


def test_figures_are_served_over_http(platform: FakeLab) -> None:
    platform.deploy(A={}, B={})
    for variant in "ABAB":
        platform.invoke(TargetVariant=variant)
    with urlopen(f"{platform.url}/metrics.json") as response:  # noqa: S310 - on loopback
        figures = json.load(response)
    assert [(row["variant"], row["requests"], row["errors"]) for row in figures["variants"]] == [
        ("A", 2, 0),
        ("B", 2, 0),
    ]
    assert figures["variants"][0]["latency"]["p90"] > 0
    assert figures["variants"][0]["first_byte"]["p90"] is None
    assert "too few rounds" in figures["verdicts"][0]


def test_a_slow_shadow_variant_delays_no_request_and_drops_copies(platform: FakeLab) -> None:
    platform.deploy(A={}, shadow={"environment": {"HOLD": "1"}})
    for _ in range(70):
        platform.invoke()
    assert platform.figures()["shadow"]["dropped"] == 6
    platform.containers[1].go.set()


@pytest.mark.parametrize("chat", [False, True])
def test_a_copy_of_a_stream_has_its_time_limit_and_is_read_like_a_stream(chat: bool) -> None:
    with fake_lab(limits=TimeLimits(whole=0.0, stream=200.0)) as platform:
        platform.deploy(A={}, shadow={})
        for container in platform.containers:
            container.events = [b"data: 1\n\n", b"data: 2\n\n"]
        if chat:
            url = f"{platform.url}/endpoints/{ENDPOINT}/openai/v1/chat/completions"
            with urlopen(url, b'{"stream": true}') as response:  # noqa: S310 - on loopback
                response.read()
        else:
            call = platform.runtime.invoke_endpoint_with_response_stream
            with closing(call(EndpointName=ENDPOINT, Body=LINES)["Body"]) as events:
                list(events)
        wait_until(lambda: [one["requests"] for one in platform.figures().values()] == [1, 1])
        for figures in platform.figures().values():
            assert figures["errors"] == 0
            assert figures["first_byte"].p50 > 0


def test_a_session_that_the_container_closes_is_not_sticky(platform: FakeLab) -> None:
    platform.deploy(A={"InitialInstanceCount": 3})
    api = platform.runtime
    api.invoke_endpoint(EndpointName=ENDPOINT, Body=b"x", SessionId="NEW_SESSION")
    reply = api.invoke_endpoint(EndpointName=ENDPOINT, Body=b"close", SessionId="s1")
    assert reply["ClosedSessionId"] == "s1"
    for _ in range(30):
        api.invoke_endpoint(EndpointName=ENDPOINT, Body=b"x", SessionId="s1")
    assert all(len(container.headers) > 2 for container in platform.containers)
