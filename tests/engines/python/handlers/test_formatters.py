"""Files with formatters for text generation and without a handler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lmi_server.fakes import build_model_folder
from tests.support.handler_engine import HandlerEngine, handler_config

RECORDS = [{"token": {"id": 5}}, {"token": {"id": 6}}]
TOKENS = [
    {"id": 5, "text": " a", "log_prob": -1.0, "special_token": None},
    {"id": 6, "text": " b", "log_prob": -0.5},
]
INPUT = {"input_text": "hello", "input_ids": [3, 4], "parameters": {"details": True}}
ANSWER: dict[str, Any] = {
    "id": 0,
    "input": INPUT,
    "records": RECORDS,
    "sequences": [{"tokens": TOKENS, "finish_reason": "length"}],
    "num_before": 0,
}
Ask = Callable[[str, Any], Any]
Start = Callable[..., Ask]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an engine with the formatters of a file, and return a function that calls them."""
    engines: list[HandlerEngine] = []

    def start_one(entry: str, model_path: str = "/no/model") -> Ask:
        config = handler_config("formatters", entry=entry, model_path=model_path)
        engine = HandlerEngine(replace(config, handler=replace(config.handler, function="")))
        engines.append(engine)
        engine.wait_ready()

        def ask(stage: str, content: Any) -> Any:
            reply = engine.invoke(json.dumps(content), stage=stage, Content_Type="application/json").json()
            return reply["results"] if stage == "output" else reply

        return ask

    yield start_one
    for engine in engines:
        engine.destroy()


def test_formatters_of_payloads(start: Start) -> None:
    ask = start("model.py")
    formatted = ask("input", {"inputPrompt": "hello"})
    assert formatted == {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    assert ask("output", ANSWER) == [{"mine": record} for record in RECORDS]


def test_formatters_of_request_objects(start: Start) -> None:
    ask = start("rolling.py")
    formatted = ask("input", {"question": "hello", "parameters": {"max_new_tokens": 2, "stream": True}})
    assert formatted == {"inputs": "hello", "parameters": {"max_new_tokens": 2}, "stream": True}
    (text,) = ask("output", ANSWER)
    assert [json.loads(line) for line in text.splitlines()] == [
        {"token_id": 5, "token_text": " a", "first": True},
        {"token_id": 6, "token_text": " b", "finish_reason": "length"},
    ]
    unfinished = [{"tokens": TOKENS, "finish_reason": None}]
    (text,) = ask("output", {**ANSWER, "sequences": unfinished, "num_before": 1})
    assert "first" not in text
    assert "finish_reason" not in text


@pytest.mark.parametrize("num_before", [0, 1])
def test_token_formatters_get_the_request_and_all_tokens_so_far(num_before: int, start: Start) -> None:
    ask = start("whole_text.py")
    (text,) = ask("output", {**ANSWER, "num_before": num_before})
    expected = [
        {"input": ["hello", [3, 4], {"details": True}], "num_tokens": 1, "log_prob": -1.0},
        {"input": ["hello", [3, 4], {"details": True}], "num_tokens": 2, "log_prob": -1.5, "text": " a b"},
    ]
    assert [json.loads(line) for line in text.splitlines()] == expected[num_before:]


def test_token_formatters_get_all_answers(start: Start) -> None:
    ask = start("whole_text.py")
    other = {"tokens": TOKENS[1:], "finish_reason": "eos_token"}
    (text,) = ask("output", {**ANSWER, "sequences": [*ANSWER["sequences"], other]})
    assert json.loads(text.splitlines()[-1])["others"] == [[" b", "eos_token", -0.5]]


def test_keyword_arguments_include_the_tokenizer_and_the_output_format_is_kept(
    start: Start, tmp_path: Path
) -> None:
    ask = start("keywords.py", str(build_model_folder(tmp_path / "model")))
    formatted = ask("input", {"question": "one two"})
    assert formatted == {"inputs": "one Ġtwo", "parameters": {"output_formatter": "jsonlines"}}
