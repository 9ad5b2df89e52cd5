"""`/v1/completions` with the real openai package."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import SECONDS, ChangeLimits
from tests.support.client import Client
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.oracle import FEW_TOKENS, few_answers

pytestmark = [pytest.mark.e2e, pytest.mark.model]

STORY = "Once upon a time,"


def test_a_completion_equals_transformers(api: openai.OpenAI, bundled_model: Path) -> None:
    (expected,) = few_answers(bundled_model, "recipe")
    reply = api.completions.create(
        model="any-name",
        prompt=expected.text,
        temperature=0,
        max_tokens=FEW_TOKENS,
        extra_body={"ignore_eos": True},
        logprobs=1,
    )
    assert reply.model == "any-name"
    assert reply.object == "text_completion"
    (choice,) = reply.choices
    assert choice.text == expected.output_ignoring_eos
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs or [1.0])
    assert reply.usage is not None
    assert reply.usage.completion_tokens == FEW_TOKENS


def test_prompts_can_be_token_ids(api: openai.OpenAI, client: Client, bundled_model: Path) -> None:
    expected = few_answers(bundled_model, "recipe", "once")
    prompts = [list(answer.prompt_ids) for answer in expected]
    reply = api.completions.create(
        model="lmi", prompt=prompts, temperature=0, max_tokens=FEW_TOKENS, extra_body={"ignore_eos": True}
    )
    assert [choice.text for choice in reply.choices] == [answer.output_ignoring_eos for answer in expected]
    one = api.completions.create(model="lmi", prompt=prompts[0], temperature=0, max_tokens=FEW_TOKENS)
    assert expected[0].output_ignoring_eos.startswith(one.choices[0].text)
    with pytest.raises(openai.BadRequestError, match="from 0 to 49151") as caught:
        api.completions.create(model="lmi", prompt=[[1], [5, 49152]])
    assert caught.value.param == "prompt[1][1]"


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_lists_the_log_probabilities_of_the_prompt(api: openai.OpenAI, stream: bool) -> None:
    """Only the first choice computes the prompt, in several steps. The others take over its pages."""
    prompt = list(range(1000, 1513))
    body: dict[str, Any] = {"model": "lmi", "prompt": prompt, "max_tokens": 4, "echo": True, "logprobs": 1}
    (alone,) = api.completions.create(**body).choices
    found: dict[int, list[float | None]] = {0: [], 1: [], 2: []}
    reply = api.completions.create(**body, n=3, temperature=1.0, stream=stream)
    for record in reply if stream else [reply]:
        for choice in record.choices:
            found[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
    assert alone.logprobs is not None
    assert alone.logprobs.token_logprobs is not None
    first, *expected = alone.logprobs.token_logprobs[: len(prompt)]
    assert first is None
    for logprobs in found.values():
        assert logprobs[0] is None
        assert logprobs[1 : len(prompt)] == pytest.approx(expected, abs=1e-3)
        assert len(prompt) < len(logprobs) <= len(prompt) + 4


def test_a_full_queue_raises_rate_limit_error(
    api: openai.OpenAI, client: Client, limits: ChangeLimits
) -> None:
    """The queue has room for only one of two prompts, so both are rejected."""
    assert limits(job_queue_size=1, max_rolling_batch_size=1).status == 200
    with ExitStack() as stack:
        long = {"inputs": STORY, "parameters": {"max_new_tokens": 4000, "ignore_eos_token": True}}
        stack.enter_context(client.call("POST", "/invocations", long))
        wait_metrics(client, lambda seen: seen[RUNNING] == 1, SECONDS)
        with pytest.raises(openai.RateLimitError) as caught:
            api.completions.create(model="lmi", prompt=[STORY, "The capital of France is"])
        assert caught.value.status_code == 429
        assert caught.value.message
        assert int(caught.value.response.headers["retry-after"]) > 0
        # The prompt that fitted into the queue has left it again.
        assert wait_metrics(client, lambda seen: seen[WAITING] == 0, SECONDS)[WAITING] == 0
    with pytest.raises(openai.BadRequestError, match=r"at most 2, .* 1 wait \(job_queue_size\)"):
        api.completions.create(model="lmi", prompt=["One", "Two", "Three"])  # too many for an idle server too
