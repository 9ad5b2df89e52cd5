"""`/v1/chat/completions` and `/v1/models` with the real openai package."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CAPITAL: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture
def api(paged_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{paged_server.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_streamed_chat_completion_equals_the_whole_one(api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(model="any-name", messages=CAPITAL, temperature=0, max_tokens=32)
    assert whole.model == "any-name"
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    stream = api.chat.completions.create(
        model="lmi",
        messages=CAPITAL,
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices][-1] == "stop"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    # Not the whole usage: cached prompt tokens differ between the two.
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_clients_accumulating_stream(api: openai.OpenAI) -> None:
    """`.stream(...)` assembles the chunks and validates them strictly."""
    with api.chat.completions.stream(
        model="lmi", messages=CAPITAL, temperature=0, max_completion_tokens=32
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    assert "Paris" in text
    assert final.choices[0].finish_reason == "stop"


def test_the_asynchronous_client(paged_server: Server) -> None:
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(
            base_url=f"{paged_server.base_url}/v1", api_key="none", max_retries=0
        ) as api:
            whole = api.chat.completions.create(model="lmi", messages=CAPITAL, temperature=0, max_tokens=8)
            stream = await api.chat.completions.create(
                model="lmi", messages=CAPITAL, temperature=0, max_tokens=8, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return (await whole).choices[0].message.content or "", text

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
    assert whole


def test_every_field_of_the_client_is_accepted_with_a_neutral_value(api: openai.OpenAI) -> None:
    reply = api.chat.completions.create(
        model="lmi",
        messages=[
            {"role": "developer", "content": "Be brief.", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": "Hi.", "refusal": None, "tool_calls": []},
            {"role": "user", "content": "Hello again"},
        ],
        audio=None,
        frequency_penalty=0,
        function_call="none",
        functions=[],
        logit_bias={},
        logprobs=False,
        max_completion_tokens=2,
        metadata={"a": "b"},
        modalities=["text"],
        n=1,
        parallel_tool_calls=True,
        prediction=None,
        presence_penalty=0,
        prompt_cache_key="key",
        prompt_cache_retention="in_memory",
        prompt_cache_options={},
        reasoning_effort="none",
        response_format={"type": "text"},
        safety_identifier="someone",
        seed=1,
        service_tier="auto",
        stop=None,
        store=False,
        stream=False,
        stream_options=None,
        temperature=0.5,
        tool_choice="none",
        tools=[],
        top_logprobs=None,
        top_p=1,
        user="someone",
        verbosity="medium",
        extra_headers={"x-request-id": "label-1"},
        extra_body={"top_k": 5, "repetition_penalty": 1.1, "ignore_eos": True, "my_own": [1]},
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2


def test_the_response_has_the_clients_request_id(api: openai.OpenAI) -> None:
    raw = api.chat.completions.with_raw_response.create(
        model="lmi", messages=CAPITAL, max_tokens=1, extra_headers={"x-request-id": "label-2"}
    )
    assert raw.headers["x-request-id"] == "label-2"
    assert raw.parse()._request_id == "label-2"


def test_models_list_names_lmi(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == ["lmi"]


def test_a_bad_value_raises_bad_request_error(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        api.chat.completions.create(model="lmi", messages=CAPITAL, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    assert "3" in caught.value.message
    assert "2" in caught.value.message


def test_a_prompt_that_is_too_long_has_its_own_error_code(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="lmi", messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def test_an_unsupported_path_raises_not_found_error(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no such path"):
        api.embeddings.create(model="lmi", input="Hello")
