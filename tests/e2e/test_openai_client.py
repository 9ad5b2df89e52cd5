"""`/v1/chat/completions` and `/v1/models` with the real openai package."""

from __future__ import annotations

from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CAPITAL: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


def test_a_streamed_chat_completion_equals_the_whole_one(api: openai.OpenAI) -> None:
    """`.stream(...)` assembles the chunks and validates them strictly."""
    asked: dict[str, Any] = {"messages": CAPITAL, "temperature": 0, "max_completion_tokens": 32}
    whole = api.chat.completions.create(model="any-name", **asked)
    assert whole.model == "any-name"
    assert "Paris" in (whole.choices[0].message.content or "")
    with api.chat.completions.stream(model="lmi", **asked, stream_options={"include_usage": True}) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == text == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert whole.usage is not None
    # Not the whole usage: cached prompt tokens differ between the two.
    assert final.usage.total_tokens == whole.usage.total_tokens


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
    with pytest.raises(openai.NotFoundError, match="embeddings are not supported"):
        api.embeddings.create(model="lmi", input="Hello")
