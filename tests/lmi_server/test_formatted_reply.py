"""Input of a user's output formatter, for whole and streamed answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.core import FinishReason, RequestOutput
from engines.health import EngineState, Health
from lmi_server.app import create_app
from lmi_server.generation.formatter import Formatter, Rewritten
from lmi_server.generation.time_limit import TimeLimit
from lmi_server.http.client_gone import ClientWatch
from lmi_server.http.json_reply import dump
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import BODIES, PROMPT, post, refusal_of
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, encode, says, tokens, top, web_config
from tests.lmi_server.malformed_bodies import CHAT


class TokenFormatter(Formatter):
    """Joins the texts of the tokens, and records the content of each call."""

    def __init__(self) -> None:
        self.contents: list[dict[str, Any]] = []
        self.reads_tokens = True
        self.rewrite: Callable[[Any], Any] = lambda record: record
        """Rewrites a record, if the formatter reads records."""

    @property
    def reads_bodies(self) -> bool:
        return False

    @property
    def writes_answers(self) -> bool:
        return True

    def health(self) -> Health:
        return Health(EngineState.READY, "", 0.0)

    def rewrite_response(self, content: dict[str, Any], client: ClientWatch, limit: TimeLimit) -> Rewritten:
        self.contents.append(json.loads(dump(content)))
        if not self.reads_tokens:
            return Rewritten([self.rewrite(record) for record in content["records"]], reads_tokens=False)
        texts = ["".join(token["text"] for token in new_tokens(each)) for each in content["answers"]]
        return Rewritten(texts, reads_tokens=True)

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The answers of all calls."""
        return [answer for content in self.contents for answer in content["answers"]]


def new_tokens(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens of an answer's first sequence that no earlier call had."""
    tokens: list[dict[str, Any]] = answer["sequences"][0]["tokens"]
    return tokens[answer["num_before"] :]


@pytest.fixture
def formatter() -> TokenFormatter:
    return TokenFormatter()


@pytest.fixture
def client(engine: FakeEngine, text_model: TextModel, formatter: TokenFormatter) -> FlaskClient:
    return create_app(web_config(Path("/none")), engine, text_model, formatter).test_client()


Ask = Callable[..., str]


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def ask(request: pytest.FixtureRequest, client: FlaskClient) -> Ask:
    """Return the formatted answer of `/invocations`."""

    def post(**parameters: Any) -> str:
        body = {**BODIES["/invocations"], "parameters": parameters, "stream": request.param}
        reply = client.post("/invocations", json=body)
        assert reply.status_code == 200, reply.text
        return reply.text.removesuffix("\n")

    return post


@pytest.mark.parametrize("stop", ["France is", "France was"])
def test_token_texts_do_not_contain_the_stop_string(stop: str, ask: Ask) -> None:
    assert ask(stop=[stop]) == ANSWER.partition(stop)[0]


def test_held_back_text_is_part_of_the_last_token(ask: Ask) -> None:
    assert ask(stop=["Paris. And"]) == ANSWER


def test_the_text_of_a_stop_token_is_left_out(ask: Ask, engine: FakeEngine) -> None:
    (dot,) = encode(".")
    engine.script = lambda request: tokens(request, encode("one two."), FinishReason.EOS_TOKEN)
    assert ask(stop_token_ids=[dot]) == "one two"


def test_a_finish_reason_without_a_token_is_formatted(
    ask: Ask, engine: FakeEngine, formatter: TokenFormatter
) -> None:
    ids = encode("one tw")
    engine.script = lambda request: [
        *tokens(request, ids, end=None),
        RequestOutput(request.id, finish_reason=FinishReason.LENGTH),
    ]
    assert ask(stop=["two"]) == "one tw"
    assert formatter.answers[-1]["sequences"][0]["finish_reason"] == "length"


def test_chat_tokens_without_visible_text_are_formatted(
    client: FlaskClient, engine: FakeEngine, formatter: TokenFormatter
) -> None:
    engine.script = says("a\nb 😀")
    shown = post(client, CHAT, stop=["\n\n"], stream=True).text
    sent = [token for answer in formatter.answers for token in new_tokens(answer)]
    text = "".join(token["text"] for token in sent)
    assert text == "a\nb 😀"
    assert text in shown
    ids = [token["id"] for token in sent]
    assert tuple(ids) == encode("a\nb 😀")
    assert [answer["num_before"] for answer in formatter.answers] == list(range(len(ids)))


def test_every_call_gets_all_tokens_so_far(client: FlaskClient, formatter: TokenFormatter) -> None:
    assert post(client, CHAT, n=2, stream=True).text
    ids = list(encode(ANSWER))
    for index in range(2):
        own = [answer for answer in formatter.answers if answer["id"] == index]
        assert [answer["num_before"] for answer in own] == list(range(len(ids)))
        for end, answer in enumerate(own, 1):
            assert [token["id"] for token in answer["sequences"][0]["tokens"]] == ids[:end]


def test_a_formatter_of_records_gets_no_tokens_after_its_first_response(
    client: FlaskClient, formatter: TokenFormatter
) -> None:
    """All tokens so far, with the prompt, in every message would cost more with each token."""
    formatter.reads_tokens = False
    assert post(client, "/invocations", stream=True).text
    assert len(formatter.contents) > 2
    assert ["answers" in content for content in formatter.contents[:3]] == [True, False, False]


def test_the_request_is_passed_on(ask: Ask, formatter: TokenFormatter) -> None:
    ask(details=False, max_new_tokens=4)
    for answer in formatter.answers:
        assert answer["input"]["input_text"] == PROMPT
        assert answer["input"]["input_ids"] == list(encode(PROMPT))
        parameters = answer["input"]["parameters"]
        assert parameters.pop("stream") is (len(formatter.contents) > 1)
        assert parameters == {"details": False, "max_new_tokens": 4}


def test_large_parameters_are_refused(client: FlaskClient, formatter: TokenFormatter) -> None:
    """Each call of the formatter gets them."""
    assert post(client, CHAT, metadata={"a": "x" * 65_000}).status_code == 200
    refused = post(client, CHAT, metadata={"a": "x" * 65_536})
    assert "parameters: given 65" in refusal_of(refused)
    assert "accepted: at most 65536 with an output formatter" in refusal_of(refused)


def test_each_streamed_choice_has_its_own_prompt(client: FlaskClient, formatter: TokenFormatter) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "stream": True, "temperature": 0.5}
    assert client.post("/v1/completions", json=body).text
    texts = {answer["id"]: answer["input"]["input_text"] for answer in formatter.answers}
    assert texts == {0: "one", 1: "one", 2: "two", 3: "two"}
    assert formatter.answers[0]["input"]["parameters"] == {"n": 2, "stream": True, "temperature": 0.5}


def test_a_whole_answer_has_a_sequence_for_each_choice(
    client: FlaskClient, formatter: TokenFormatter
) -> None:
    assert post(client, CHAT, n=3).text == ANSWER + "\n"
    (answer,) = formatter.answers
    ids = [[token["id"] for token in sequence["tokens"]] for sequence in answer["sequences"]]
    assert ids == [list(encode(ANSWER))] * 3


@pytest.fixture
def list_client(echoing: FakeEngine, text_model: TextModel, formatter: TokenFormatter) -> FlaskClient:
    """engine=Python, which repeats each prompt."""
    return create_app(
        web_config(Path("/none"), engine="Python"), echoing, text_model, formatter
    ).test_client()


@pytest.mark.parametrize("prompts", [["one two", "three"], ["one two"]])
@pytest.mark.parametrize("path", ["/invocations", "/v1/completions"])
def test_each_prompt_of_a_whole_answer_is_formatted(
    path: str, prompts: list[str], list_client: FlaskClient, formatter: TokenFormatter
) -> None:
    body: dict[str, Any] = {"inputs": prompts, "parameters": {"do_sample": True, "n": 2, "best_of": 2}}
    if path == "/v1/completions":
        body = {"prompt": prompts, "n": 2}
    reply = list_client.post(path, json=body)
    assert (reply.json if len(prompts) > 1 else [reply.text.removesuffix("\n")]) == prompts
    assert [answer["input"]["input_text"] for answer in formatter.answers] == prompts
    assert [len(answer["sequences"]) for answer in formatter.answers] == [2] * len(prompts)


@pytest.mark.parametrize("inputs", ["one two", ["one two", "three"]])
def test_a_formatter_of_records_gets_each_element_of_a_list(
    inputs: str | list[str], list_client: FlaskClient, formatter: TokenFormatter
) -> None:
    formatter.reads_tokens = False
    reply = list_client.post("/invocations", json={"inputs": inputs})
    prompts = inputs if isinstance(inputs, list) else [inputs]
    assert reply.json == [{"generated_text": prompt} for prompt in prompts]
    assert formatter.contents[0]["records"] == reply.json


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_tokens_have_log_probabilities_that_the_answer_does_not_show(
    path: str, stream: bool, client: FlaskClient, formatter: TokenFormatter
) -> None:
    assert post(client, path, stream=stream).status_code == 200
    assert {token["log_prob"] for answer in formatter.answers for token in new_tokens(answer)} == {-0.5}
    for record in (record for content in formatter.contents for record in content["records"]):
        assert "details" not in record
        assert all(choice["logprobs"] is None for choice in record.get("choices", ()))


def test_beam_search_is_formatted_without_log_probabilities(
    client: FlaskClient, formatter: TokenFormatter
) -> None:
    assert post(client, "/invocations", num_beams=2).text == ANSWER + "\n"
    assert {token["log_prob"] for token in new_tokens(formatter.answers[0])} == {None}


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        (CHAT, {"n": 2, "stream_options": {"include_usage": True}}),
        ("/v1/completions", {"echo": True, "stream_options": {"include_usage": True}}),
    ],
)
def test_all_records_of_a_stream_are_rewritten(
    path: str, changes: dict[str, Any], client: FlaskClient, formatter: TokenFormatter
) -> None:
    """Also those before the first token and after the last one."""
    formatter.reads_tokens = False
    plain = post(client, path, stream=True, **changes).text
    rewritten = [record for content in formatter.contents for record in content["records"]]
    *frames, done = plain.removesuffix("\n\n").split("\n\n")
    assert [json.loads(frame.removeprefix("data: ")) for frame in frames] == rewritten
    assert rewritten[-1]["usage"]["completion_tokens"] > 0
    assert done == "data: [DONE]"


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_of_a_token_formatter_has_only_its_texts(
    path: str, client: FlaskClient, formatter: TokenFormatter
) -> None:
    assert post(client, path, stream=True).text == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_sent_unchanged(stream: bool, client: FlaskClient, engine: FakeEngine) -> None:
    text = "line\u2028separator"
    engine.script = says(text)
    assert post(client, "/invocations", stream=stream).text.removesuffix("\n") == text


@pytest.mark.parametrize(
    ("path", "written", "sent"),
    [
        ("/invocations", '{"a": 1}', '{"a": 1}\n'),
        ("/invocations", '{"a": 1}\n', '{"a": 1}\n'),
        ("/invocations", "data: 1\n\n", "data: 1\n\n"),
        ("/invocations", "", ""),
        (CHAT, "data: 1", "data: 1\n\n"),
        (CHAT, "data: 1\n", "data: 1\n\n"),
        (CHAT, "data: 1\n\n", "data: 1\n\n"),
    ],
)
def test_each_text_for_a_record_of_a_stream_ends_its_line(
    path: str, written: str, sent: str, client: FlaskClient, formatter: TokenFormatter
) -> None:
    formatter.reads_tokens = False
    formatter.rewrite = lambda record: written
    records = post(client, path, stream=True).text.removesuffix("data: [DONE]\n\n")
    num_records = sum(len(content["records"]) for content in formatter.contents)
    assert records == sent * num_records
    assert num_records > 1


def test_top_tokens_are_passed_on(ask: Ask, formatter: TokenFormatter) -> None:
    ask(top_n_tokens=2)
    sent = [token for answer in formatter.answers for token in new_tokens(answer)]
    expected = [[other for other, _ in top(token_id, 2)] for token_id in encode(ANSWER)]
    assert [[one["id"] for one in token["top_tokens"]] for token in sent] == expected
    assert {token["top_tokens"][0]["log_prob"] for token in sent} == {-0.5}


def test_reported_tokens_of_the_prompt_are_passed_on(client: FlaskClient, formatter: TokenFormatter) -> None:
    post(client, "/invocations", decoder_input_details=True)
    post(client, "/invocations")
    first, second = formatter.answers
    assert [token["id"] for token in first["prompt_tokens"]] == list(encode(PROMPT))
    assert [token["log_prob"] for token in first["prompt_tokens"][:3]] == [None, -1.0, -2.0]
    assert second["prompt_tokens"] == []
