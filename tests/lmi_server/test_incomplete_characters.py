"""Outputs that end within a character: its replacement is text of the last token with text."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.core import FinishReason
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import post
from tests.lmi_server.fakes import FakeEngine, chunks, encode, tokens
from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS, INVOCATIONS

EOS = 2
START = encode("😀")[0]
"""A token with the first bytes of a character."""
TEXT = "a\ufffd"


def test_the_start_of_a_character_has_no_text(text_model: TextModel) -> None:
    assert text_model.token_text(START) == "\ufffd"


@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize("end", [(), (EOS,)])
def test_details_list_the_whole_text(
    end: tuple[int, ...], per_step: int, client: FlaskClient, engine: FakeEngine
) -> None:
    reason = FinishReason.EOS_TOKEN if end else FinishReason.LENGTH
    engine.script = lambda request: tokens(request, [*encode("a"), START, *end], reason, per_step)
    body = post(client, INVOCATIONS, details=True).get_json()
    assert body["generated_text"] == TEXT
    assert [token["text"] for token in body["details"]["tokens"]] == ["a", "\ufffd", *([""] if end else [])]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_log_probabilities_list_the_whole_text(
    path: str, stream: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    engine.script = lambda request: tokens(request, [*encode("a"), START])
    reply = post(client, path, logprobs=1 if path == COMPLETIONS else True, stream=stream)
    logprobs = [record["choices"][0]["logprobs"] for record in (chunks(reply) if stream else [reply.json])]
    if path == COMPLETIONS:
        assert [name for one in logprobs for name in one["tokens"]] == list(TEXT)
        assert [offset for one in logprobs for offset in one["text_offset"]] == [0, 1]
        return
    content: list[dict[str, Any]] = [entry for one in logprobs if one for entry in one["content"]]
    assert [(entry["token"], entry["bytes"]) for entry in content] == [("a", list(b"a")), ("\ufffd", None)]


@pytest.mark.parametrize("per_step", [1, 3])
def test_a_stop_token_after_it_is_cut_off(per_step: int, client: FlaskClient, engine: FakeEngine) -> None:
    """Its text must not pass for that of the replacement, which is as long."""
    (stop,) = encode("b")
    engine.script = lambda request: tokens(
        request, [*encode("a"), START, stop], FinishReason.EOS_TOKEN, per_step
    )
    (choice,) = post(client, COMPLETIONS, logprobs=1, stop_token_ids=[stop]).get_json()["choices"]
    assert choice["text"] == TEXT
    assert choice["logprobs"]["tokens"] == list(TEXT)
