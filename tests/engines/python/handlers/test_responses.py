"""Responses that an output formatter uses as dictionaries or as vLLM's response objects."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from djl_python.outputs import encode_json

from engines.python.handlers.responses import plain_result, response_object
from tests.engines.python.handlers.line import load_file

CHAT = {
    "id": "1",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}}],
}
COMPLETION = {"id": "1", "model": "m", "choices": [{"index": 0, "text": "Paris", "logprobs": None}]}
CHUNK = {"id": "1", "choices": [{"index": 0, "delta": {"content": "Pa"}}]}
LMI = {"generated_text": "Paris", "details": {"finish_reason": "length"}}
STREAMED = {"token": {"id": 5, "text": "is"}, "generated_text": "Paris"}
RECORDS: list[dict[str, Any]] = [CHAT, COMPLETION, CHUNK, LMI, STREAMED]


def _formatted(record: dict[str, Any]) -> Any:
    line = load_file("formatters", "objects.py", function="", model_path="/no/model")
    content = json.dumps({"records": [record], "answers": []})
    return line.ask(content, stage="output", Content_Type="application/json").json()["results"][0]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (CHAT, {**CHAT, "choices": [{"index": 0, "message": {"role": "assistant", "content": "PARIS"}}]}),
        (COMPLETION, {**COMPLETION, "choices": [{"index": 0, "text": "PARIS", "logprobs": None}]}),
        (CHUNK, {**CHUNK, "choices": [{"index": 0, "delta": {"content": "PA"}}]}),
        (LMI, {**LMI, "generated_text": "PARIS"}),
        (STREAMED, {**STREAMED, "token": {"id": 5, "text": "IS"}}),
        ({"choices": []}, {"choices": []}),
    ],
)
def test_a_formatter_changes_the_attributes_of_a_response(record: Any, expected: Any) -> None:
    assert _formatted(record) == {**expected, "by": "me"}


@pytest.mark.parametrize("record", RECORDS)
def test_a_response_is_a_dictionary_too(record: dict[str, Any]) -> None:
    response = response_object(record)
    assert isinstance(response, dict)
    assert response == record == response.model_dump() == json.loads(response.model_dump_json())
    assert type(response.model_dump()) is dict
    assert copy.deepcopy(response) == record
    assert encode_json(plain_result(response)) == encode_json(record)


def test_fields_are_attributes() -> None:
    response = response_object(COMPLETION)
    choice = response.choices[0]
    assert (response.model, choice.text, choice["text"], choice.logprobs) == ("m", "Paris", "Paris", None)
    assert "logprobs" not in response.model_dump(exclude_none=True)["choices"][0]
    response.usage = {"total": 3}
    assert response["usage"] == {"total": 3}
    del response.usage
    assert not hasattr(response, "usage")
    assert not hasattr(choice, "message")
    with pytest.raises(AttributeError, match="the response has no field 'usage'"):
        del response.usage


def test_a_streamed_choice_has_a_message() -> None:
    response = response_object(CHUNK)
    response.choices[0].message.content = "x"
    assert response == {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}
    empty = response_object({"choices": [{"index": 0, "delta": {}}]})
    assert empty.choices[0].delta.content is None
    assert empty.model_dump() == {"choices": [{"index": 0, "delta": {}}]}
    assert not hasattr(empty.choices[0], "text")


def test_a_text_in_lmis_format_has_a_choice() -> None:
    response = response_object(LMI)
    assert (response.choices[0].text, response.choices[0].finish_reason) == ("Paris", "length")
    assert (response.model, response.generated_text) == ("lmi", "Paris")
    response.choices[0]["text"] = "Rome"
    assert response == {**LMI, "generated_text": "Rome"}
    copy.deepcopy(response.choices[0]).text = "Oslo"
    assert response.generated_text == "Rome"
    response.choices = []
    assert response.choices == []
    assert not hasattr(response_object({"token": {"text": "a"}}).choices[0], "message")


def test_other_objects_of_pydantic_become_dictionaries() -> None:
    assert plain_result(SimpleNamespace(model_dump=lambda: {"a": 1})) == {"a": 1}
    assert plain_result("text") == "text"
