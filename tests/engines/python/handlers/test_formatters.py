"""Files with formatters for text generation and without a handler."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from djl_python import Input
from djl_python.request_io import RequestInput, TextInput
from transformers import BatchEncoding

from engines.python.handlers.formatters import Formatters
from tests.docs.pages import read
from tests.engines.python.handlers.line import load_file, make_input
from tests.lmi_server.fakes import build_model_folder
from tests.support.paths import REPO_ROOT

RECORDS = [{"token": {"id": 5}}, {"token": {"id": 6}}]
TOKENS = [
    {"id": 5, "text": " a", "log_prob": -1.0, "special_token": None},
    {"id": 6, "text": " b", "log_prob": -0.5},
]
INPUT = {"input_text": "hello", "input_ids": [3, 4], "parameters": {"details": True}}
ANSWER: dict[str, Any] = {
    "id": 0,
    "input": INPUT,
    "sequences": [{"tokens": TOKENS, "finish_reason": "length"}],
    "num_before": 0,
}


def _load(entry: str, model_path: str = "/no/model") -> Callable[[str, Any], Any]:
    """Load a file's formatters. Return a function that calls them, given a stage and its content."""
    line = load_file("formatters", entry, function="", model_path=model_path)

    def ask(stage: str, content: Any) -> Any:
        if stage == "output":
            content = {"records": RECORDS, "answers": content}
        reply = line.ask(json.dumps(content), stage=stage, Content_Type="application/json").json()
        return reply["results"] if stage == "output" else reply

    return ask


def test_formatters_of_payloads() -> None:
    ask = _load("model.py")
    formatted = ask("input", {"inputPrompt": "hello"})
    assert formatted == {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    assert ask("output", [ANSWER]) == [{"mine": record} for record in RECORDS]


def test_formatters_of_request_objects() -> None:
    ask = _load("rolling.py")
    formatted = ask("input", {"question": "hello", "parameters": {"max_new_tokens": 2, "stream": True}})
    assert formatted == {"inputs": "hello", "parameters": {"max_new_tokens": 2}, "stream": True}
    (text,) = ask("output", [ANSWER])
    assert [json.loads(line) for line in text.splitlines()] == [
        {"token_id": 5, "token_text": " a", "first": True},
        {"token_id": 6, "token_text": " b", "finish_reason": "length"},
    ]
    unfinished = [{"tokens": TOKENS, "finish_reason": None}]
    (text,) = ask("output", [{**ANSWER, "sequences": unfinished, "num_before": 1}])
    assert "first" not in text
    assert "finish_reason" not in text


@pytest.mark.parametrize("num_before", [0, 1])
def test_token_formatters_get_the_request_and_all_tokens_so_far(num_before: int) -> None:
    ask = _load("whole_text.py")
    (text,) = ask("output", [{**ANSWER, "num_before": num_before}])
    request = {"input": ["hello", [3, 4], {"details": True}], "num_prompt_tokens": 2}
    expected = [
        {**request, "num_tokens": 1, "log_prob": -1.0},
        {**request, "num_tokens": 2, "log_prob": -1.5, "text": " a b"},
    ]
    assert [json.loads(line) for line in text.splitlines()] == expected[num_before:]


def test_token_formatters_get_all_answers() -> None:
    ask = _load("whole_text.py")
    other = {"tokens": TOKENS[1:], "finish_reason": "eos_token"}
    (text,) = ask("output", [{**ANSWER, "sequences": [*ANSWER["sequences"], other]}])
    assert json.loads(text.splitlines()[-1])["others"] == [[" b", "eos_token", -0.5]]


def test_token_formatters_get_the_answers_to_each_prompt() -> None:
    second = {**ANSWER, "id": 1, "input": {**INPUT, "input_text": "bye"}}
    texts = _load("whole_text.py")("output", [ANSWER, second])
    assert [json.loads(text.splitlines()[0])["input"][0] for text in texts] == ["hello", "bye"]


def _plain(request, **kwargs):  # type: ignore[no-untyped-def]
    return {"inputs": type(request).__name__}


def _returns_request(request, **kwargs) -> RequestInput:  # type: ignore[no-untyped-def]
    return TextInput(input_text=type(request).__name__)


def _takes_dict(request: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    return {"inputs": type(request).__name__}


def _formatted(
    function: Callable[..., Any], options: dict[str, str], body: bytes = b"{}", content_type: str = ""
) -> Any:
    """Return the body that an input formatter returns."""
    inputs = make_input(body, content_type)
    inputs.properties["stage"] = "input"
    output = Formatters({"input_formatter": function}, options, takes_index=False)(inputs)
    assert output is not None
    return json.loads(output.content.get("data"))


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (_plain, {}, "dict"),
        (_plain, {"rolling_batch": "auto"}, "dict"),
        (_plain, {"rolling_batch": "vllm"}, "Input"),
        (_plain, {"rolling_batch": "lmi-dist"}, "Input"),
        (_plain, {"rolling_batch": "vllm", "async_mode": "true"}, "dict"),
        (_returns_request, {}, "Input"),
        (_takes_dict, {"rolling_batch": "vllm"}, "dict"),
    ],
)
def test_input_formatters_without_annotations_get_what_lmi_passes(
    function: Callable[..., Any], options: dict[str, str], expected: str
) -> None:
    assert _formatted(function, options)["inputs"] == expected


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"inputs": "a"}', "", "a"),
        (b'{"inputs": "a"}', "application/octet-stream", "a"),
        (b'{"inputs": "a"}', "application/x-www-form-urlencoded", "a"),
        (b'{"inputs": "a"}', "application/vnd.a+json", "a"),
        (b"a b", "text/plain; charset=utf-8", ["a b"]),
        (b"inputs,n\na,1\nb,2\n", "text/csv", ["a", "b"]),
    ],
)
def test_an_input_formatter_gets_the_body_decoded_by_its_content_type(
    body: bytes, content_type: str, expected: Any
) -> None:
    assert _formatted(lambda request: request, {}, body, content_type)["inputs"] == expected


@pytest.mark.parametrize("prompt", [[5, 6], BatchEncoding({"input_ids": [5, 6], "attention_mask": [1, 1]})])
def test_an_input_formatter_may_return_token_ids(prompt: Any) -> None:
    def tokenized(request: Input, **kwargs: Any) -> RequestInput:
        return TextInput(input_text=prompt)

    assert _formatted(tokenized, {})["inputs"] == [5, 6]


def test_keyword_arguments_include_the_tokenizer_and_the_output_format_is_kept(tmp_path: Path) -> None:
    ask = _load("keywords.py", str(build_model_folder(tmp_path / "model")))
    formatted = ask("input", {"question": "one two"})
    assert formatted == {"inputs": "one Ġtwo", "parameters": {"output_formatter": "jsonlines"}}


def test_token_formatters_use_the_methods_of_lmis_types() -> None:
    top = [{"id": 5, "text": " a", "log_prob": -1.0}, {"id": 7, "text": " c", "log_prob": -2.0}]
    tokens = [{**TOKENS[0], "top_tokens": top}, {**TOKENS[1], "special_token": True, "log_prob": None}]
    prompt = [{"id": 3, "text": "hel", "log_prob": None}, {"id": 4, "text": "lo", "log_prob": -3.0}]
    answer = {
        **ANSWER,
        "input": {**INPUT, "parameters": {"max_new_tokens": 2}},
        "sequences": [{"tokens": tokens, "finish_reason": "length"}],
        "prompt_tokens": prompt,
    }
    (text,) = _load("details.py")("output", [answer])
    first, last = map(json.loads, text.splitlines())
    assert first == {"token": {"id": 5, "text": " a", "log_prob": -1.0}}
    records = [first["token"], {"id": 6, "text": " b", "log_prob": None, "special_token": True}]
    assert last == {
        "token": records[1],
        "details": {
            "finish_reason": "length",
            "stop_reason": None,
            "error": None,
            "client": None,
            "length": 2,
            "tokens": records,
            "prefill": prompt,
            "top_tokens": [top, []],
            "next_top_tokens": 0,
        },
    }


def test_get_next_token_returns_the_index_to_a_file_that_takes_it() -> None:
    (text,) = _load("index.py")("output", [ANSWER])
    none_left = [None, 0, False, False]
    expected = [[" a", 0, True, False, none_left], [" b", 1, False, True, none_left]]
    assert [json.loads(line) for line in text.splitlines()] == expected


@pytest.mark.parametrize("num_before", [0, 1])
def test_formatters_with_six_arguments_get_each_token(num_before: int) -> None:
    ask = _load("six_arguments.py")
    (text,) = ask("output", [{**ANSWER, "num_before": num_before}])
    records = [{"id": 5, "text": " a", "log_prob": -1.0}, {"id": 6, "text": " b", "log_prob": -0.5}]
    details = {"inputs": "hello", "parameters": {"details": True}, "prompt_tokens": 2}
    expected = [
        {
            "token": records[0],
            "first": True,
            "last": False,
            "text": "",
            "id": 0,
            "details": {**details, "finish_reason": None, "tokens": records[:1], "generated_tokens": 1},
        },
        {
            "token": records[1],
            "first": False,
            "last": True,
            "text": " a b",
            "id": 0,
            "details": {**details, "finish_reason": "length", "tokens": records, "generated_tokens": 2},
        },
    ]
    assert [json.loads(line) for line in text.splitlines()] == expected[num_before:]


def test_formatters_with_six_arguments_get_details_and_the_prompt_on_request() -> None:
    request = {**INPUT, "parameters": {"return_full_text": True}}
    (text,) = _load("six_arguments.py")("output", [{**ANSWER, "input": request}])
    shown = [(each["details"], each["text"]) for each in map(json.loads, text.splitlines())]
    assert shown == [({}, "hello"), ({}, "hello a b")]


def test_the_sum_of_unknown_log_probabilities_is_not_a_number() -> None:
    tokens = [{**token, "log_prob": None} for token in TOKENS]
    (text,) = _load("whole_text.py")(
        "output", [{**ANSWER, "sequences": [{"tokens": tokens, "finish_reason": "length"}]}]
    )
    assert all(math.isnan(json.loads(line)["log_prob"]) for line in text.splitlines())


def test_output_formatters_in_the_documentation(tmp_path: Path) -> None:
    results = []
    for number, block in enumerate(read(REPO_ROOT / "docs/handlers.md").blocks("python")):
        (tmp_path / f"example{number}.py").write_text(block.text, encoding="utf-8")
        results.append(_load(str(tmp_path / f"example{number}.py"))("output", [ANSWER]))
    records = [{**record, "source": "my-endpoint"} for record in RECORDS]
    assert results[:2] == [records, ["5: a\n6: b (length)\n"]]
    (text,) = results[2]
    first, last = [{key: token[key] for key in ("id", "text", "log_prob")} for token in TOKENS]
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == [{"token": first}, {"token": last, "generated_text": " a b"}]
