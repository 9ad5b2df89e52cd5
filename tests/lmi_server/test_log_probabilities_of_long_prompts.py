"""The work for the log-probabilities of a long prompt: each token is decoded once, and other requests go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engines.core import SamplingParams
from lmi_server.generation.answer_text import Completion, GenerationRequest, TextRules
from lmi_server.generation.candidates import HttpRequest
from lmi_server.generation.generation import TextGeneration
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.fakes import FakeEngine, turns_of_another_greenlet


def complete_long_prompt(engine: FakeEngine, text_model: TextModel, n: int = 1) -> Sequence[Completion]:
    """Complete a prompt of 2000 tokens, with 20 top tokens for each."""
    sampling = SamplingParams(max_new_tokens=1, prompt_logprobs=20)
    ids = tuple(number % text_model.vocabulary_size for number in range(2000))
    request = GenerationRequest("", ids, sampling, TextRules(continues_prompt=True), "prompt", n, n)
    http = HttpRequest("a", arrival_time=0.0)
    generation = TextGeneration(http, [request], engine=engine, text=text_model, client=ClientWatch(None))
    for _ in generation:
        pass
    return generation.result.completions


def test_log_probabilities_of_a_long_prompt_decode_each_token_once(
    engine: FakeEngine, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_model = TextModel.from_folder(model_folder)
    num_decodes = 0
    decode: Callable[..., str] = TextModel.decode

    def counting(self: TextModel, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        nonlocal num_decodes
        num_decodes += 1
        return decode(self, token_ids, skip_special_tokens)

    monkeypatch.setattr(TextModel, "decode", counting)
    complete_long_prompt(engine, text_model)
    assert num_decodes <= 2 * text_model.vocabulary_size


def test_other_greenlets_run_while_a_long_prompt_is_completed(
    engine: FakeEngine, text_model: TextModel
) -> None:
    with turns_of_another_greenlet() as turns:
        complete_long_prompt(engine, text_model)
    assert len(turns) > 5


def test_choices_of_a_prompt_share_its_log_probabilities(engine: FakeEngine, text_model: TextModel) -> None:
    first, *others = (
        completion.prompt_tokens for completion in complete_long_prompt(engine, text_model, n=3)
    )
    assert len(first) == 2000
    assert all(tokens is first for tokens in others)
