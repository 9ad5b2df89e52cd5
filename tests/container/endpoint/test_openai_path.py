"""OpenAI's client on the path of an endpoint."""

from __future__ import annotations

import json
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import openai
import pytest

from tests.container.endpoint.fake_containers import FakeLab
from tests.support.endpoints import ENDPOINT
from tests.support.waiting import wait_until

MESSAGES = [{"role": "user", "content": "Hi"}]
CHUNKS = [
    {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    for text in ("Hel", "lo")
]
EVENTS = [f"data: {text}\n\n".encode() for text in (*map(json.dumps, CHUNKS), "[DONE]")]


def chat_client(platform: FakeLab, endpoint: str = ENDPOINT) -> openai.OpenAI:
    url = f"{platform.url}/endpoints/{endpoint}/openai/v1"
    return openai.OpenAI(base_url=url, api_key="any", max_retries=0)


def test_a_chat_request_reaches_the_containers_own_path(platform: FakeLab) -> None:
    platform.deploy()
    with closing(chat_client(platform)) as client:
        reply = client.chat.completions.with_raw_response.create(model="lmi", messages=MESSAGES)
    assert json.loads(reply.text) == {"messages": MESSAGES, "model": "lmi"}, "the container echoes the body"
    assert reply.headers["x-Amzn-Invoked-Production-Variant"] == "AllTraffic"
    (container,) = platform.containers
    assert container.paths == ["/v1/chat/completions"]
    assert container.headers[0]["content-type"] == "application/json"
    assert "authorization" not in container.headers[0]
    assert platform.figures()["AllTraffic"]["requests"] == 1


def test_a_stream_is_passed_on_as_it_is(platform: FakeLab) -> None:
    platform.deploy()
    platform.containers[0].events = EVENTS
    with closing(chat_client(platform)) as client:
        stream = client.chat.completions.create(model="lmi", messages=MESSAGES, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello"
    wait_until(lambda: platform.figures()["AllTraffic"]["requests"] == 1)
    assert platform.figures()["AllTraffic"]["first_byte"].p50 is not None


def test_a_client_that_disconnects_from_a_stream_frees_the_container(platform: FakeLab) -> None:
    platform.deploy(A={"environment": {"STALL": "1"}})
    platform.containers[0].events = EVENTS[:1] * 100
    with closing(chat_client(platform)) as client:
        stream = client.chat.completions.create(model="lmi", messages=MESSAGES, stream=True)
        next(iter(stream))
        assert platform.containers[0].in_flight == 1
        stream.close()
    platform.containers[0].go.set()
    wait_until(lambda: not platform.containers[0].in_flight)


def test_errors_have_the_form_of_openai(platform: FakeLab) -> None:
    platform.deploy(A={"environment": {"FAIL": "400"}})
    with closing(chat_client(platform)) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="lmi", messages=MESSAGES)
    assert caught.value.status_code == 424
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"].startswith("Received client error (400) from primary with message")
    assert (caught.value.body["type"], caught.value.body["code"]) == ("server_error", "model_error")
    with (
        closing(chat_client(platform, "another")) as client,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        client.chat.completions.create(model="lmi", messages=MESSAGES)
    assert refused.value.body == {
        "message": "Endpoint another not found.",
        "type": "invalid_request_error",
        "code": "validation_error",
    }


def test_a_body_of_deeply_nested_json_is_forwarded_and_frees_the_container(platform: FakeLab) -> None:
    platform.deploy(A={"environment": {"FAIL": "400"}})
    url = f"{platform.url}/endpoints/{ENDPOINT}/openai/v1/chat/completions"
    with pytest.raises(HTTPError) as caught:
        urlopen(url, b"[" * 200_000)  # noqa: S310 - on loopback
    with closing(caught.value):
        assert caught.value.code == 424
    assert len(platform.containers[0].paths) == 1
    assert platform.containers[0].in_flight == 0
