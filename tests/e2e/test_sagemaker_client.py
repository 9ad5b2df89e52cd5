"""The unmodified `sagemaker-runtime` client of boto3, through `lmi endpoint`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.e2e.conftest import SECONDS
from tests.support.client import Client
from tests.support.endpoints import ENDPOINT, endpoint_for_server
from tests.support.metrics import wait_metrics
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]

STORY = "Once upon a time,"
JSON = "application/json"


@pytest.fixture
def api(paged_server: Server) -> Iterator[Any]:
    with endpoint_for_server(paged_server.port) as platform:
        yield platform.runtime


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": STORY, "parameters": {"max_new_tokens": 12}, **fields}).encode()


def payloads(reply: Any) -> list[bytes]:
    """Read a stream to the end and return the payloads of its events."""
    with closing(reply["Body"]) as events:
        return [event["PayloadPart"]["Bytes"] for event in events]


def test_invoke_endpoint(api: Any, client: Client) -> None:
    reply = api.invoke_endpoint(EndpointName=ENDPOINT, Body=body(), ContentType=JSON, Accept=JSON)
    assert reply["ContentType"] == JSON
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    assert json.load(reply["Body"]) == client.post("/invocations", json.loads(body())).json()


def test_invoke_endpoint_with_response_stream(api: Any, client: Client) -> None:
    """The call streams although the body does not ask for it."""
    reply = api.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=body(), ContentType=JSON)
    assert reply["ContentType"] == "application/jsonlines"
    received = payloads(reply)
    assert sum(part.endswith(b"\n") for part in received) < len(received)
    joined = b"".join(received)  # a record may be split over several payloads
    assert joined.endswith(b"\n")
    records = [json.loads(line) for line in joined.splitlines()]
    assert len(records) == 12
    assert not any("generated_text" in record for record in records[:-1])
    whole = client.post("/invocations", json.loads(body())).json()
    assert records[-1]["generated_text"] == whole["generated_text"]
    assert "".join(record["token"]["text"] for record in records) == whole["generated_text"]


def test_the_first_events_arrive_before_generation_ends(api: Any, client: Client) -> None:
    before = client.metrics()["lmi_tokens_generated_total"]
    # Too many to wait for: the client disconnects.
    request = body(parameters={"max_new_tokens": 3000, "ignore_eos_token": True})
    reply = api.invoke_endpoint_with_response_stream(EndpointName=ENDPOINT, Body=request, ContentType=JSON)
    with closing(reply["Body"]) as stream:
        events = iter(stream)
        received = next(events)["PayloadPart"]["Bytes"]
        assert client.metrics()["lmi_tokens_generated_total"] - before < 1500
        while received.count(b"\n") < 60:
            received += next(events)["PayloadPart"]["Bytes"]
    assert wait_metrics(client, lambda seen: seen.idle, SECONDS).idle


@pytest.mark.parametrize("streamed", [False, True])
def test_custom_attributes_are_returned(streamed: bool, api: Any) -> None:
    call = api.invoke_endpoint_with_response_stream if streamed else api.invoke_endpoint
    reply = call(
        EndpointName=ENDPOINT,
        Body=body(),
        ContentType=JSON,
        CustomAttributes="trace=7;who=me",
        InferenceId="my-inference-1",
    )
    assert reply["CustomAttributes"] == "trace=7;who=me"
    _ = payloads(reply) if streamed else reply["Body"].read()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_rejected_body_raises_model_error(streamed: bool, api: Any) -> None:
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
