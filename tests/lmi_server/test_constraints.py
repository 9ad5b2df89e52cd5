"""Unsupported constraints of other servers are refused by name, never ignored silently."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from lmi_server.config import ServerConfig
from tests.lmi_server.bodies import refusal_of
from tests.lmi_server.conftest import MakeClient
from tests.lmi_server.fakes import FakeEngine

REFUSED: dict[str, Any] = {
    "guided_json": {"type": "object"},
    "guided_regex": "[0-9]+",
    "guided_choice": ["yes", "no"],
    "guided_grammar": "root ::= x",
    "guided_decoding_backend": "xgrammar",
    "guided_whitespace_pattern": " ",
    "guided_decoding": {"json": {}},
    "guided_decoding_guide": "[0-9]+",
    "structured_outputs": {"choice": ["yes", "no"]},
    "structural_tag": "x",
    "response_format": {"type": "json_object"},
    "grammar": {"type": "regex", "value": "[0-9]+"},
    "grammar_string": "root ::= x",
    "regex": "[0-9]+",
    "ebnf": "root ::= x",
    "json_schema": "{}",
    "allowed_token_ids": [5, 6],
    "logits_processors": ["x"],
    "custom_logit_processor": "x",
    "stop_regex": "[0-9]+",
    "logprob_token_ids": [5, 6],
    "repetition_detection": {"max_pattern_size": 5, "min_count": 3},
    "use_beam_search": True,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "force_words_ids": [[5]],
    "constraints": ["x"],
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "suffix": "the end",
    "adapter": "french",
    "adapter_id": "my-lora",
    "adapters": ["french"],
    "chat_template": "{{ 1 }}",
    "documents": [{"text": "x"}],
    "requestType": "NEW_SESSION",
    "prompt_embeds": "AAAA",
    "cache_salt": "secret",
    "thinking_token_budget": 10,
    "watermark": True,
    "watermarking": True,
    "penalty_alpha": 0.6,
    "guidance_scale": 1.5,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "max_time": 5.0,
    "exponential_decay_length_penalty": [5, 1.1],
    "no_repeat_ngram_size": 3,
    "forced_eos_token_id": 2,
}
NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": None,
    "min_p": 0,
    "typical_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "num_beams": 1,
    "min_tokens": 0,
    "stop_token_ids": [],
    "truncate": None,
    "skip_special_tokens": True,
    "logprobs": None,
    "top_n_tokens": 0,
    "decoder_input_details": False,
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "auto",
    "use_beam_search": False,
    "suffix": "",
    "guidance_scale": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "logits_processors": [],
    "custom_logit_processor": "",
    "stop_regex": [],
    "logprob_token_ids": [],
    "repetition_detection": {},
    "watermark": False,
    "watermarking": False,
    "penalty_alpha": 0,
    "pad_token_id": 0,
    "model_id": "my-component",
    "sagemaker_base_url": "https://runtime.sagemaker.eu-west-1.amazonaws.com/endpoints/a/invocations",
    "aws_sagemaker_allow_zero_temp": True,
    "length_penalty": 2.0,
    "early_stopping": True,
    "use_cache": True,
    "no_repeat_ngram_size": 0,
    "forced_eos_token_id": None,
    "guided_json": None,
    "thinking_token_budget": -1,
    "adapters": [""],
}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "chat on /invocations": ("/invocations", {"messages": [{"role": "user", "content": "Hi"}]}),
    "parameters": ("/invocations", {"inputs": "Hi"}),
}


def send(client: FlaskClient, body: str, fields: dict[str, Any]) -> Any:
    path, prompt = BODIES[body]
    return client.post(path, json={**prompt, **({"parameters": fields} if body == "parameters" else fields)})


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("unknown", ["error", "warn"])
def test_an_unsupported_constraint_is_refused_by_name(
    body: str, unknown: str, make_client: MakeClient, engine: FakeEngine
) -> None:
    client = make_client(ServerConfig(unknown_parameters=unknown))
    for name, value in REFUSED.items():
        text = refusal_of(send(client, body, {name: value}))
        prefix = "parameters." if body == "parameters" else ""
        assert text.startswith(f"{prefix}{name}: given ")
        assert ", but " in text
    assert engine.requests == []


@pytest.mark.parametrize("body", BODIES)
def test_neutral_values_are_accepted(body: str, client: FlaskClient, engine: FakeEngine) -> None:
    for name, value in NEUTRAL.items():
        reply = send(client, body, {name: value})
        assert reply.status_code == 200, reply.text
    assert {request.sampling.plain for request in engine.requests} == {body == "parameters"}


def test_a_body_may_name_no_adapters(client: FlaskClient) -> None:
    """As some clients of LMI do for a request to the base model."""
    for none in ([], [""], ["", ""], "", None):
        assert client.post("/invocations", json={"inputs": "Hi", "adapters": none}).status_code == 200
    for other in (["french"], ["", "french"], ["french", ""], [None]):
        reply = client.post("/invocations", json={"inputs": "Hi", "adapters": other})
        assert refusal_of(reply).startswith("adapters: given [")


@pytest.mark.parametrize("body", BODIES)
def test_a_query_or_header_that_selects_an_adapter_is_refused(
    body: str, client: FlaskClient, engine: FakeEngine
) -> None:
    path, prompt = BODIES[body]
    header = "X-Amzn-SageMaker-Adapter-Identifier"
    reason = 'given "french", but LoRA adapters are not supported; accepted: ""'
    for query in ("?adapter=french", "?adapter=&adapter=french"):
        assert refusal_of(client.post(path + query, json=prompt)) == f"adapter: {reason}"
    refused = client.post(path, json=prompt, headers={header: "french"})
    assert refusal_of(refused) == f"{header}: {reason}"
    assert engine.requests == []
    accepted = client.post(f"{path}?adapter=", json=prompt, headers={header: ""})
    assert accepted.status_code == 200


@pytest.mark.parametrize("body", BODIES)
def test_null_members_of_an_object_mean_nothing(body: str, client: FlaskClient) -> None:
    text = {"type": "text", "json_schema": None}
    assert send(client, body, {"response_format": text}).status_code == 200
    schema = {"type": "json_schema", "json_schema": None}
    assert "response_format: given " in refusal_of(send(client, body, {"response_format": schema}))


def test_constraints_at_the_top_level_of_a_body_are_refused(make_client: MakeClient) -> None:
    client = make_client(ServerConfig(unknown_parameters="warn"))
    for name, value in REFUSED.items():
        if name in ("no_repeat_ngram_size", "forced_eos_token_id"):
            continue  # known parameters in the wrong place are logged like unknown fields
        reply = client.post("/invocations", json={"inputs": "Hi", name: value})
        assert refusal_of(reply).startswith(f"{name}: given ")
    assert client.post("/invocations", json={"inputs": "Hi", "colour": "red"}).status_code == 200


def test_a_long_name_of_a_constraint_is_cut_in_the_error(client: FlaskClient) -> None:
    fields = {"guided_" + "x" * 10_000: "[0-9]+"}
    replies = [send(client, body, fields) for body in BODIES]
    for reply in [*replies, client.post("/invocations", json={"inputs": "Hi", **fields})]:
        assert "guided_xxx" in refusal_of(reply)
        assert len(reply.data) < 2000


@pytest.mark.parametrize("body", [body for body in BODIES if body != "parameters"])
def test_unknown_parameters_of_openai_bodies_are_ignored(body: str, client: FlaskClient) -> None:
    assert send(client, body, {"max_token": 5, "colour": "red"}).status_code == 200


def test_unknown_parameters_beside_a_prompt_on_invocations_are_refused(make_client: MakeClient) -> None:
    client, lenient = make_client(), make_client(ServerConfig(unknown_parameters="warn"))
    for fields in ({"max_token": 5}, {"parameters": {"max_token": 5}}):
        body = {"prompt": "Hi", **fields}
        refusal = refusal_of(client.post("/invocations", json=body))
        assert refusal == "max_token: unknown name, given with value 5; did you mean 'max_tokens'?"
        assert lenient.post("/invocations", json=body).status_code == 200


@pytest.mark.parametrize("body", ["chat", "completions"])
def test_parameters_next_to_openai_fields_are_refused(
    body: str, client: FlaskClient, engine: FakeEngine
) -> None:
    text = refusal_of(send(client, body, {"parameters": {"max_new_tokens": 5}}))
    assert "parameters: given " in text
    assert "top level" in text
    assert engine.requests == []
    accepted = {"parameters": {}, "echo": False, "stream_options": None, "user": "someone", "my_extra": 1}
    assert send(client, body, accepted).status_code == 200


def test_tools_are_refused_before_their_choice(client: FlaskClient) -> None:
    fields = {"tool_choice": {"type": "function"}, "tools": [{"type": "function"}]}
    assert refusal_of(send(client, "chat", fields)).startswith("tools: given ")


def test_tools_are_accepted_if_tool_choice_is_none(client: FlaskClient) -> None:
    disabled_tools = {
        "tools": [{"type": "function"}],
        "tool_choice": "none",
        "functions": [{}],
        "function_call": "none",
    }
    assert send(client, "chat", disabled_tools).status_code == 200
