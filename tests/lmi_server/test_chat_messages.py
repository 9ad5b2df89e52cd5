"""Messages of a chat as the model's template gets them, and chats that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from lmi_server.apis.openai.messages import parse_messages
from lmi_server.app import create_app
from lmi_server.errors import InvalidField
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import refusal_of
from tests.lmi_server.fakes import FakeEngine, web_config

USER = {"role": "user", "content": "Hi"}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def developer(text: Any) -> dict[str, Any]:
    return {"role": "developer", "content": text}


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([developer("a"), USER], [system("a"), USER]),
        ([developer(PARTS), USER], [system(PARTS), USER]),
        ([system("a"), developer("b"), USER], [system("a\n\nb"), USER]),
        ([system(PARTS), developer("b"), USER], [system("one\ntwo\n\nb"), USER]),
        ([system(""), developer("b"), USER], [system("b"), USER]),
        ([USER, developer("b")], [system("b"), USER]),
        ([system("a"), USER, developer("b"), USER], [system("a\n\nb"), USER, USER]),
        ([system("a"), USER, system("b"), USER], [system("a"), USER, system("b"), USER]),
    ],
)
def test_developer_messages_are_part_of_the_system_message(
    messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert parse_messages(messages) == expected


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["one", {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "input_text", "text": "one"}], "one"),
        ([{"type": "output_text", "text": "one"}], "one"),
        (None, ""),
    ],
)
def test_a_content_is_rendered_like_its_text(
    content: Any, text: str, role: str, client: FlaskClient, engine: FakeEngine
) -> None:
    for each in (content, text):
        messages = [{"role": role, "content": each}, USER]
        assert client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    first, second = engine.requests
    assert first.prompt_token_ids == second.prompt_token_ids


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "a"}, "a"),
        ({"thinking": "a", "reasoning_content": None}, "a"),
        ({"thinking": "a", "reasoning": "b", "reasoning_content": "c"}, "c"),
    ],
)
def test_reasoning_has_all_names(fields: dict[str, Any], expected: str) -> None:
    answer = {"role": "assistant", "content": "4"}
    names = ("reasoning_content", "reasoning", "thinking")
    assert parse_messages([{**answer, **fields}]) == [{**answer, **dict.fromkeys(names, expected)}]
    assert parse_messages([{**USER, **fields}]) == [USER]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_a_string(name: str) -> None:
    with pytest.raises(InvalidField, match=rf"messages\[0\]\.{name}: given 5; accepted: a string"):
        parse_messages([{"role": "assistant", "content": "4", name: 5}])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "the model has no chat template; accepted: "),
        (
            ("rag", "tool_use"),
            "the model has no chat template named 'default' (found: rag, tool_use); accepted: ",
        ),
    ],
)
def test_a_model_without_a_default_template(
    names: tuple[str, ...], words: str, model_folder: Path, engine: FakeEngine, text_model: TextModel
) -> None:
    text = replace(text_model, chat_template=None, template_names=names)
    client = create_app(web_config(model_folder), engine, text).test_client()
    reply = client.post("/v1/chat/completions", json={"messages": [USER]})
    assert reply.status_code == 400
    assert words in reply.get_json()["error"]["message"]


def test_continuing_a_message_is_refused_with_its_own_reason(client: FlaskClient) -> None:
    body = {"messages": [USER], "continue_final_message": True}
    error = client.post("/v1/chat/completions", json=body).get_json()["error"]
    assert error["param"] == "continue_final_message"
    assert "an assistant's message cannot be continued" in error["message"]
    assert (
        client.post("/v1/chat/completions", json={**body, "continue_final_message": False}).status_code == 200
    )


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_an_answer_to_continue_is_refused(name: str, client: FlaskClient) -> None:
    """Mistral, DeepSeek and LiteLLM mark it with `prefix`, and Moonshot with `partial`."""
    answer = {"role": "assistant", "content": "4"}
    for neutral in (False, None):
        messages = [USER, {**answer, name: neutral}]
        assert client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    reply = client.post("/v1/chat/completions", json={"messages": [USER, {**answer, name: True}]})
    assert refusal_of(reply).startswith(
        f"messages[1].{name}: given true, but an assistant's message cannot be continued; accepted: false"
    )
