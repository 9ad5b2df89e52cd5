"""Input of a user's output formatter, for whole and streamed answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.core import FinishReason, RequestOutput
from lmi_server.app import create_app
from lmi_server.generation.formatter import Formatter
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, says, tokens, web_config

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


class TokenFormatter(Formatter):
    """Joins the texts of the tokens, and records the content of each call."""

    def __init__(self) -> None:
        self.contents: list[dict[str, Any]] = []

    @property
    def reads_bodies(self) -> bool:
        return False

    @property
    def writes_answers(self) -> bool:
        return True

    def rewrite_response(self, content: dict[str, Any], client: ClientWatch) -> list[Any]:
        self.contents.append(content)
        return ["".join(token["text"] for token in content["tokens"])]


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
        body = {"inputs": "Hello", "parameters": parameters, "stream": request.param}
        reply = client.post("/invocations", json=body)
        assert reply.status_code == 200, reply.text
        return reply.text.removesuffix("\n")

    return post


@pytest.mark.parametrize("stop", ["France is", "France was"])
def test_token_texts_do_not_contain_the_stop_string(stop: str, ask: Ask) -> None:
    assert ask(stop=[stop]) == ANSWER.partition(stop)[0]


def test_held_back_text_is_part_of_the_last_token(ask: Ask) -> None:
    assert ask(stop=["Paris. And"]) == ANSWER


def test_the_text_of_a_stop_token_is_left_out(ask: Ask, engine: FakeEngine, text_model: TextModel) -> None:
    (dot,) = text_model.encode(".")
    engine.script = lambda request: tokens(request, text_model.encode("one two."), FinishReason.EOS_TOKEN)
    assert ask(stop_token_ids=[dot]) == "one two"


def test_a_finish_reason_without_a_token_is_formatted(
    ask: Ask, engine: FakeEngine, text_model: TextModel, formatter: TokenFormatter
) -> None:
    ids = text_model.encode("one tw")
    engine.script = lambda request: [
        *tokens(request, ids, end=None),
        RequestOutput(request.id, finish_reason=FinishReason.LENGTH),
    ]
    assert ask(stop=["two"]) == "one tw"
    assert formatter.contents[-1]["finish_reason"] == "length"


def test_chat_tokens_without_visible_text_are_formatted(
    client: FlaskClient, engine: FakeEngine, text_model: TextModel, formatter: TokenFormatter
) -> None:
    engine.script = says(text_model, "a\nb 😀")
    shown = client.post("/v1/chat/completions", json={**CHAT, "stop": ["\n\n"], "stream": True}).text
    text = "".join(token["text"] for content in formatter.contents for token in content["tokens"])
    assert text == "a\nb 😀"
    assert text in shown
    ids = [token["id"] for content in formatter.contents for token in content["tokens"]]
    assert tuple(ids) == text_model.encode("a\nb 😀")
    assert [content["num_before"] for content in formatter.contents] == list(range(len(ids)))


def test_tokens_are_counted_separately_for_each_choice(
    client: FlaskClient, formatter: TokenFormatter
) -> None:
    assert client.post("/v1/chat/completions", json={**CHAT, "n": 2, "stream": True}).text
    for index in range(2):
        own = [content["num_before"] for content in formatter.contents if content["id"] == index]
        assert own == list(range(len(own)))
        assert own
