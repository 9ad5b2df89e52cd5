"""Files with formatters for text generation and without a handler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.handler_engine import HandlerEngine, handler_config

RECORDS = [{"token": {"id": 5}}, {"token": {"id": 6}}]
TOKENS = [{"id": 5, "text": " a", "log_prob": -1.0, "special_token": None}, {"id": 6, "text": " b"}]
ANSWER = {"id": 0, "records": RECORDS, "tokens": TOKENS, "num_before": 0, "finish_reason": "length"}
Ask = Callable[[str, Any], Any]


@pytest.fixture
def start() -> Iterator[Callable[[str], Ask]]:
    """Start an engine with the formatters of a file, and return a function that calls them."""
    engines: list[HandlerEngine] = []

    def start_one(entry: str) -> Ask:
        config = handler_config("formatters", entry=entry, model_path="/no/model")
        engine = HandlerEngine(replace(config, handler=replace(config.handler, function="")))
        engines.append(engine)
        engine.wait_ready()

        def ask(stage: str, content: Any) -> Any:
            return engine.invoke(json.dumps(content), stage=stage, Content_Type="application/json").json()

        return ask

    yield start_one
    for engine in engines:
        engine.destroy()


def test_formatters_of_payloads(start: Callable[[str], Ask]) -> None:
    ask = start("model.py")
    formatted = ask("input", {"inputPrompt": "hello"})
    assert formatted == {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    assert ask("output", ANSWER) == [{"mine": record} for record in RECORDS]


def test_formatters_of_request_objects(start: Callable[[str], Ask]) -> None:
    ask = start("rolling.py")
    formatted = ask("input", {"question": "hello", "parameters": {"max_new_tokens": 2, "stream": True}})
    assert formatted == {"inputs": "hello", "parameters": {"max_new_tokens": 2}, "stream": True}
    (text,) = ask("output", ANSWER)
    assert [json.loads(line) for line in text.splitlines()] == [
        {"token_id": 5, "token_text": " a", "first": True},
        {"token_id": 6, "token_text": " b", "finish_reason": "length"},
    ]
    (text,) = ask("output", {**ANSWER, "num_before": 7, "finish_reason": None})
    assert "first" not in text
    assert "finish_reason" not in text
