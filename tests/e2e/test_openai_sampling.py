"""Sampling parameters and logprobs with the real openai package, on both engines where both support them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lmi_server.text.tokenizer import TextModel
from tests.e2e.conftest import openai_client

pytestmark = [pytest.mark.e2e, pytest.mark.model]

STORY = "Once upon a time,"
CAPITAL: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]
ANSWER = "The capital of France is Paris."


@pytest.fixture(params=["paged_server", "dynamic_server"])
def either(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """A client of each engine. `api` is one of engine=MPI, for features that engine=Python does not support."""
    with openai_client(request.getfixturevalue(request.param)) as client:
        yield client


def complete(api: openai.OpenAI, **fields: Any) -> openai.types.Completion:
    return api.completions.create(
        **{"model": "lmi", "prompt": STORY, "temperature": 0, "max_tokens": 16, **fields}
    )


def chat(api: openai.OpenAI, **fields: Any) -> openai.types.chat.ChatCompletion:
    return api.chat.completions.create(**{"model": "lmi", "messages": CAPITAL, "temperature": 0, **fields})


def content(choice: Any) -> str:
    return choice.message.content or ""


def test_n_choices_use_different_seeds(either: openai.OpenAI) -> None:
    def texts(**fields: Any) -> list[str]:
        reply = complete(either, temperature=1.0, seed=7, max_tokens=6, **fields)
        assert [choice.index for choice in reply.choices] == list(range(len(reply.choices)))
        return [choice.text for choice in reply.choices]

    three = texts(n=3)
    assert len(set(three)) == 3
    assert texts(n=3) == three
    assert texts() == three[:1]
    assert texts(prompt=[STORY, STORY], n=2) == three[:2] * 2


def test_chat_logprobs_whole_and_streamed(either: openai.OpenAI) -> None:
    (choice,) = chat(either, logprobs=True, top_logprobs=5).choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert content(choice) == ANSWER
    assert "".join(entry.token for entry in entries) == f"{ANSWER}<|im_end|>"  # the token that ends the text
    for entry in entries:
        # Greedy decoding: the sampled token is the most likely one.
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-5)
        likely = [other.logprob for other in entry.top_logprobs]
        assert likely == sorted(likely, reverse=True)
        assert 0.05 < sum(map(math.exp, likely)) <= 1 + 1e-5
    streamed = []
    for chunk in either.chat.completions.create(
        model="lmi", messages=CAPITAL, temperature=0, logprobs=True, top_logprobs=5, stream=True
    ):
        for one in chunk.choices:
            streamed += (one.logprobs.content if one.logprobs else None) or []
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    for one, other in zip(streamed, entries, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_echo_with_logprobs_scores_the_prompt(api: openai.OpenAI) -> None:
    """Prompt tokens get the logprobs that they had when they were generated."""
    first = complete(api, logprobs=3, max_tokens=10).choices[0]
    assert first.logprobs is not None
    again = complete(api, prompt=STORY + first.text, logprobs=3, echo=True, max_tokens=1).choices[0]
    assert again.logprobs is not None
    scores, tokens = again.logprobs.token_logprobs or [], again.logprobs.tokens or []
    assert again.text.startswith(STORY + first.text)
    assert "".join(tokens) == again.text
    assert scores[0] is None
    generated = len(first.logprobs.tokens or [])
    assert tokens[-1 - generated : -1] == first.logprobs.tokens
    assert scores[-1 - generated : -1] == pytest.approx(first.logprobs.token_logprobs, abs=1e-3)


def test_logit_bias_bans_and_forces(either: openai.OpenAI, bundled_model: Path) -> None:
    (paris,) = TextModel.from_folder(bundled_model).encode(" Paris")
    assert " Paris" not in content(chat(either, logit_bias={str(paris): -100}, max_tokens=12).choices[0])
    (forced,) = complete(either, logit_bias={str(paris): 100}, max_tokens=4).choices
    assert forced.text == " Paris" * 4


def test_a_stop_string_that_spans_tokens_is_never_streamed(either: openai.OpenAI) -> None:
    stop = "ital of Fr"
    expected = ANSWER[: ANSWER.index(stop)]
    stream = either.chat.completions.create(
        model="lmi", messages=CAPITAL, temperature=0, stop=["never", stop], stream=True, logprobs=True
    )
    text = logprobs_text = ""
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            entries = (choice.logprobs.content if choice.logprobs else None) or []
            logprobs_text += "".join(entry.token for entry in entries)
            assert expected.startswith(text)
            assert expected.startswith(logprobs_text)
            reason = choice.finish_reason
    assert text == expected
    assert reason == "stop"


def test_usage_reports_the_cached_tokens_of_a_repeated_prompt(api: openai.OpenAI) -> None:
    prompt = "A long story that nobody has told before. " * 20

    def cached() -> int:
        usage = complete(api, prompt=prompt, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    cached()
    assert cached() > 100
