"""engine=Python over HTTP: lists of prompts on `/invocations`, and the openai client."""

from __future__ import annotations

import json

import openai
import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]

STORY = "Once upon a time,"
PROMPTS = [STORY, "The capital of France is", "def main():"]


def test_a_list_is_one_batch_and_each_prompt_has_its_element(dynamic_server: Server) -> None:
    client = dynamic_server.client
    parameters = {"max_new_tokens": 8, "details": True}
    alone = [
        client.post("/invocations", {"inputs": prompt, "parameters": parameters}).json()[0]
        for prompt in PROMPTS
    ]
    before = client.metrics()
    answer = client.post("/invocations", {"inputs": PROMPTS, "parameters": parameters})
    after = client.metrics()
    assert answer.status == 200
    assert after["lmi_batch_size_count"] - before["lmi_batch_size_count"] == 1
    assert after["lmi_batch_size_sum"] - before["lmi_batch_size_sum"] == len(PROMPTS)
    got = answer.json()
    assert [one["generated_text"] for one in got] == [one["generated_text"] for one in alone]
    assert [one["details"]["inputs"] for one in got] == PROMPTS
    bad = client.post("/invocations", {"inputs": [STORY, "word " * 9000], "parameters": parameters})
    assert bad.status == 424
    assert "inputs[1]" in bad.json()["error"]


def test_a_stream_has_one_prompt(dynamic_server: Server) -> None:
    client = dynamic_server.client
    body = {"inputs": [STORY], "parameters": {"max_new_tokens": 8}, "stream": True}
    records = [json.loads(line) for line in client.post("/invocations", body).body.splitlines()]
    assert len(records) == 8
    assert records[-1]["generated_text"]
    refused = client.post("/invocations", {**body, "inputs": PROMPTS})
    assert refused.status == 424
    assert "one prompt in a stream" in refused.json()["error"]


def test_the_openai_client_whole_and_streamed(dynamic_server: Server) -> None:
    with openai.OpenAI(base_url=f"{dynamic_server.base_url}/v1", api_key="none", max_retries=0) as api:
        whole = api.completions.create(model="lmi", prompt=PROMPTS, temperature=0, max_tokens=8)
        texts = dict.fromkeys(range(3), "")
        for chunk in api.completions.create(
            model="lmi", prompt=PROMPTS, temperature=0, max_tokens=8, stream=True
        ):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}
