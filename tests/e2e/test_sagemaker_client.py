"""boto3's `sagemaker-runtime` client as it is, through a stand-in for the platform (`tests/support`)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from tests.support.client import Client
from tests.support.sagemaker_front import CUT_SIZES, ENDPOINT, SageMakerFront
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]

STORY = "Once upon a time,"
JSON = "application/json"


@contextmanager
def runtime(url: str) -> Iterator[Any]:
    client = boto3.client(
        "sagemaker-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - nobody checks it
        config=Config(retries={"total_max_attempts": 1}, read_timeout=70),
    )
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def front(paged_server: Server) -> Iterator[SageMakerFront]:
    with SageMakerFront(paged_server.base_url) as running:
        yield running


@pytest.fixture
def api(front: SageMakerFront) -> Iterator[Any]:
    with runtime(front.url) as client:
        yield client


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": STORY, "parameters": {"max_new_tokens": 12}, **fields}).encode()


def parts(reply: Any) -> list[bytes]:
    """The payloads of a stream's events, read to the end."""
    with closing(reply["Body"]) as events:
        return [event["PayloadPart"]["Bytes"] for event in events]


def lines(received: list[bytes]) -> list[Any]:
    """The records of a jsonlines stream, whose parts end anywhere."""
    joined = b"".join(received)
    assert joined.endswith(b"\n")
    return [json.loads(line) for line in joined.splitlines()]


def test_invoke_endpoint(api: Any, client: Client) -> None:
    reply = api.invoke_endpoint(EndpointName=ENDPOINT, Body=body(), ContentType=JSON, Accept=JSON)
    assert reply["ContentType"] == JSON
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    assert json.load(reply["Body"]) == client.post("/invocations", json.loads(body())).json()


def test_stream(api: Any, front: SageMakerFront, client: Client) -> None:
    """The platform's streaming call streams, though the body does not ask for it."""
    reply = api.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=body(), ContentType=JSON)
    assert reply["ContentType"] == "application/jsonlines"
    received = parts(reply)
    assert max(map(len, received)) <= max(CUT_SIZES)
    assert sum(part.endswith(b"\n") for part in received) < len(received)
    records = lines(received)
    assert len(records) == 12
    whole = client.post("/invocations", json.loads(body())).json()
    assert records[-1]["generated_text"] == whole["generated_text"]
    assert "".join(record["token"]["text"] for record in records) == whole["generated_text"]
    assert front.exchanges[-1].sent["x-amzn-sagemaker-forwarded-api"] == "InvokeEndpointWithResponseStream"


def test_first_parts_come_before_the_answer_is_complete(api: Any, client: Client) -> None:
    before = client.metrics()["lmi_tokens_generated_total"]
    asked = body(parameters={"max_new_tokens": 120, "ignore_eos_token": True})
    reply = api.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=asked, ContentType=JSON)
    with closing(reply["Body"]) as stream:
        events = iter(stream)
        received = [next(events)["PayloadPart"]["Bytes"]]
        assert client.metrics()["lmi_tokens_generated_total"] - before < 60
        received += [event["PayloadPart"]["Bytes"] for event in events]
    assert len(lines(received)) == 120


@pytest.mark.parametrize("streamed", [False, True])
def test_custom_attributes_and_inference_id(streamed: bool, api: Any, front: SageMakerFront) -> None:
    call = api.invoke_endpoint_with_response_stream if streamed else api.invoke_endpoint
    reply = call(
        EndpointName=ENDPOINT,
        Body=body(),
        ContentType=JSON,
        CustomAttributes="trace=7;who=me",
        InferenceId="my-inference-1",
    )
    assert reply["CustomAttributes"] == "trace=7;who=me"
    assert front.exchanges[-1].received["x-request-id"] == "my-inference-1"
    _ = parts(reply) if streamed else reply["Body"].read()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refused_body_is_a_model_error(streamed: bool, api: Any) -> None:
    call = api.invoke_endpoint_with_response_stream if streamed else api.invoke_endpoint
    with pytest.raises(ClientError) as caught:
        call(EndpointName=ENDPOINT, Body=body(parameters={"temperature": -1}), ContentType=JSON)
    assert isinstance(caught.value, api.exceptions.ModelError)
    reply = caught.value.response
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert reply["OriginalStatusCode"] == 424
    original = json.loads(reply["OriginalMessage"])
    assert original["code"] == 424
    assert original["error"].startswith("parameters.temperature: given -1")


def test_an_unknown_endpoint_is_a_validation_error(api: Any, front: SageMakerFront) -> None:
    with pytest.raises(api.exceptions.ValidationError, match="not found"):
        api.invoke_endpoint(EndpointName="another", Body=body())
    assert front.exchanges == []


def test_a_stream_that_breaks_is_a_model_stream_error() -> None:
    """By a container that dies in mid-stream, which ours would only do when killed."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/jsonlines\r\nTransfer-Encoding: chunked\r\n\r\n"

    def die(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head + b"6\r\nhalf\n!\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        container = threading.Thread(target=die, args=(listener,))
        container.start()
        with (
            SageMakerFront(f"http://127.0.0.1:{listener.getsockname()[1]}") as front,
            runtime(front.url) as api,
        ):
            reply = api.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=body())
            received = []
            with closing(reply["Body"]) as events, pytest.raises(EventStreamError) as caught:
                received.extend(event["PayloadPart"]["Bytes"] for event in events)
        container.join(10)
    assert b"".join(received) == b"half\n!"
    assert "ModelStreamError" in str(caught.value)
    assert "the container's stream broke" in str(caught.value)
