"""`/v1/*` as the real openai package sees it."""

from __future__ import annotations

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


def test_whole_chat_completion(api: openai.OpenAI) -> None:
    reply = api.chat.completions.create(model="any-name", messages=CAPITAL, temperature=0, max_tokens=32)
    assert reply.model == "any-name"
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 37
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_streamed_chat_completion_equals_the_whole_one(api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(model="lmi", messages=CAPITAL, temperature=0, max_tokens=32)
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
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_max_tokens_is_a_length_finish(api: openai.OpenAI) -> None:
    reply = api.chat.completions.create(model="lmi", messages=CAPITAL, temperature=0, max_tokens=2)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2


def test_stop_string_is_not_part_of_the_answer(api: openai.OpenAI) -> None:
    reply = api.chat.completions.create(model="lmi", messages=CAPITAL, temperature=0, stop=" Paris")
    assert reply.choices[0].message.content == "The capital of France is"
    assert reply.choices[0].finish_reason == "stop"


def test_models_list_names_lmi(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == ["lmi"]


def test_a_bad_value_is_a_bad_request_error(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        api.chat.completions.create(model="lmi", messages=CAPITAL, temperature=3)
    assert "3" in caught.value.message
    assert "2" in caught.value.message


def test_what_is_not_done_is_refused_by_name(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"\bn\b"):
        api.chat.completions.create(model="lmi", messages=CAPITAL, n=2)
    neutral = api.chat.completions.create(model="lmi", messages=CAPITAL, n=1, logit_bias={}, max_tokens=1)
    assert len(neutral.choices) == 1
