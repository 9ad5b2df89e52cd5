"""Parameter names of LMI, vLLM and transformers' `generate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from engines.core import FinishReason, GenerateParams
from lmi_server.app import create_app
from lmi_server.text.chat_template import ChatTemplate
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import BODIES, post, refusal_of
from tests.lmi_server.conftest import ANSWER, MakeClient
from tests.lmi_server.fakes import (
    MAX_MODEL_LEN,
    FakeEngine,
    chunks,
    encode,
    says,
    tokens,
    web_config,
)


@pytest.mark.parametrize("path", BODIES)
def test_names_of_length_limits(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    for name in ("max_new_tokens", "max_tokens", "max_completion_tokens"):
        assert post(client, path, **{name: 7}).status_code == 200
        assert engine.sampling.max_new_tokens == 7
    num_prompt = len(engine.requests[-1].prompt_token_ids)
    assert post(client, path, max_length=num_prompt + 5).status_code == 200
    assert engine.sampling.max_new_tokens == 5
    assert post(client, path, max_length=num_prompt + 5, max_new_tokens=9).status_code == 200
    assert engine.sampling.max_new_tokens == 9, "as in transformers"
    for name in ("min_new_tokens", "min_length", "min_tokens"):
        assert post(client, path, **{name: 5}).status_code == 200
        assert engine.sampling.min_new_tokens == 5
    refused = refusal_of(post(client, path, max_new_tokens=4, min_tokens=5))
    assert "given 5; accepted: at most 4" in refused
    refused = refusal_of(post(client, path, max_length=num_prompt))
    assert f"max_length: given {num_prompt}; accepted: at least {num_prompt + 1}" in refused
    beyond = post(client, path, max_length=MAX_MODEL_LEN + 1)
    if path == "/invocations":
        assert beyond.status_code == 200
        assert engine.sampling.max_new_tokens == MAX_MODEL_LEN - num_prompt
    else:
        limits = f"given {MAX_MODEL_LEN + 1}; accepted: at most {MAX_MODEL_LEN},"
        assert limits in refusal_of(beyond)


def test_max_length_of_an_encoder_decoder_excludes_the_prompt(own_folder: Path) -> None:
    (own_folder / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    text = TextModel.from_folder(own_folder)
    engine = FakeEngine(says(ANSWER))
    client = create_app(web_config(own_folder, engine="Python"), engine, text).test_client()
    assert post(client, "/invocations", max_length=3).status_code == 200
    assert engine.sampling.max_new_tokens == 3


@pytest.fixture
def metaspace_folder(own_folder: Path) -> Path:
    """A model whose tokenizer starts each word with a space, and omits that of the first word."""
    vocabulary = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "▁Wie": 3, "▁alt": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.save(str(own_folder / "tokenizer.json"))
    return own_folder


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_of_an_encoder_decoder_does_not_continue_the_prompt(
    stream: bool, metaspace_folder: Path
) -> None:
    for is_encoder_decoder, expected in ((True, "Wie alt"), (False, " Wie alt")):
        (metaspace_folder / "config.json").write_text(json.dumps({"is_encoder_decoder": is_encoder_decoder}))
        text = TextModel.from_folder(metaspace_folder)
        engine = FakeEngine(lambda request: tokens(request, (3, 4)))
        client = create_app(web_config(metaspace_folder), engine, text).test_client()
        reply = client.post("/invocations", json={"inputs": "Wie alt", "stream": stream}).text
        assert json.loads(reply.splitlines()[-1])["generated_text"] == expected


def test_the_text_of_a_chat_does_not_continue_the_prompt(metaspace_folder: Path) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    text = replace(TextModel.from_folder(metaspace_folder), chat_template=template)
    engine = FakeEngine(lambda request: tokens(request, (3, 4)))
    client = create_app(web_config(metaspace_folder), engine, text).test_client()
    body = {"messages": [{"role": "user", "content": "Wie alt"}]}
    whole = client.post("/v1/chat/completions", json=body).get_json()
    assert whole["choices"][0]["message"]["content"] == "Wie alt"
    streamed = chunks(client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert "".join(record["choices"][0]["delta"]["content"] for record in streamed) == "Wie alt"


@pytest.mark.parametrize("path", BODIES)
def test_names_of_stop_conditions(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    def stop_token_ids() -> tuple[int, ...]:
        return engine.sampling.stop_token_ids

    for value, expected in ((5, (5,)), ([7, 8, 7], (7, 8)), ([], ()), (None, (2, 0))):
        assert post(client, path, eos_token_id=value).status_code == 200
        assert stop_token_ids() == expected
    assert post(client, path, eos_token_id=5, stop_token_ids=6).status_code == 200
    assert stop_token_ids() == (5, 6)
    for name in ("ignore_eos", "ignore_eos_token"):
        assert post(client, path, eos_token_id=5, **{name: True}).status_code == 200
        assert stop_token_ids() == ()
    for name in ("stop", "stop_sequences", "stop_strings"):
        reply = post(client, path, **{name: [" France"]})
        assert reply.status_code == 200
        assert "The capital of" in reply.text
        assert "France is" not in reply.text


def test_an_eos_token_in_the_request_acts_like_that_of_the_model(
    client: FlaskClient, engine: FakeEngine
) -> None:
    (dot,) = encode(".")
    engine.script = lambda request: tokens(request, encode("one two."), FinishReason.EOS_TOKEN)
    body = post(client, "/invocations", eos_token_id=dot, details=True).get_json()
    assert body["generated_text"] == "one two"
    assert body["details"]["finish_reason"] == "eos_token"


@pytest.mark.parametrize("path", BODIES)
def test_names_of_choices_and_seeds(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    assert post(client, path, num_return_sequences=128).status_code == 200
    assert engine.submissions == [128]
    assert post(client, path, random_seed=5, temperature=1).status_code == 200
    assert engine.sampling.seed == 5
    seeds = set()
    for seed in (None, None, -1, -1):
        assert post(client, path, seed=seed, temperature=1).status_code == 200
        seeds.add(engine.sampling.seed)
    assert len(seeds) == 4


@pytest.mark.parametrize("path", BODIES)
def test_names_of_banned_tokens(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    assert post(client, path, bad_words_ids=[[5], [6, 7]], suppress_tokens=[9, 8]).status_code == 200
    assert engine.sampling.bad_words == ((9,), (8,), (5,), (6, 7))
    assert engine.sampling.stop_token_ids == (2, 0)
    assert post(client, path, suppress_tokens=[2]).status_code == 200
    assert engine.sampling.stop_token_ids == (0,), "a suppressed token is no stop token"
    assert post(client, path, bad_sequences=["."], suppress_tokens=3).status_code == 200
    assert (3,) in engine.sampling.bad_words


@pytest.mark.parametrize("path", BODIES)
def test_generate_parameters_reach_engine_python(
    path: str, make_client: MakeClient, engine: FakeEngine
) -> None:
    client = make_client(engine_kind="Python")
    generate_parameters = {
        "no_repeat_ngram_size": 3,
        "encoder_no_repeat_ngram_size": 2,
        "encoder_repetition_penalty": 1.5,
        "begin_suppress_tokens": [5, 6],
        "forced_bos_token_id": 7,
        "forced_eos_token_id": [2, 3],
        "sequence_bias": [[[5, 6], 1.5], [[7], -2]],
    }
    assert post(client, path, **generate_parameters).status_code == 200
    assert engine.sampling.generate == GenerateParams(
        3, 2, 1.5, (5, 6), (7,), (2, 3), (((5, 6), 1.5), ((7,), -2.0))
    )
    assert not engine.sampling.plain
    assert post(client, path, no_repeat_ngram_size=0, temperature=0).status_code == 200
    assert engine.sampling.plain
    for name, value in (("begin_suppress_tokens", [400]), ("sequence_bias", [[[5, 400], 1]])):
        assert "from 0 to 399" in refusal_of(post(client, path, **{name: value}))


@pytest.mark.parametrize(("path", "default"), list(zip(BODIES, (False, True, True), strict=True)))
def test_special_tokens_can_be_added_or_omitted(path: str, default: bool, own_folder: Path) -> None:
    text = TextModel.from_folder(own_folder)
    text.tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    engine = FakeEngine(says(ANSWER))
    client = create_app(web_config(own_folder), engine, text).test_client()
    for value, added in ((None, default), (True, True), (False, False)):
        assert post(client, path, add_special_tokens=value).status_code == 200
        assert (engine.requests[-1].prompt_token_ids[0] == 0) == added
    assert post(client, path, truncate_prompt_tokens=3).status_code == 200
    assert len(engine.requests[-1].prompt_token_ids) == 3
