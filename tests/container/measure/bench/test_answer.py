"""Response streams of both dialects: parsing and errors."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.bench.answer import AnswerReader, BadAnswer
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.workload import BenchRequest

LMI = (
    b'{"token":{"id":7,"text":" a","log_prob":-0.1}}\n\n'
    b'{"token":{"id":8,"text":"\\u00fc\xc3\xbc","log_prob":-0.1,"special_token":true}}\n'
    b'{"token":{"id":9,"text":"","log_prob":-0.1},"generated_text":" a","details":'
    b'{"finish_reason":"length","generated_tokens":3,"input_length":5,"inputs":"x"}}\n'
)
FIRST = LMI[: LMI.index(b"\n") + 1]
OPENAI = (
    b': hello\r\ndata: {"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}],"usage":null}\r\n\r\n'
    b'event: message\ndata: {"choices":[{"index":0,"text":"\xc3\xbc"}]}\n\n'
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    b'data:{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}\n\ndata: [DONE]\n\n'
)


def feed(dialect: str, data: bytes, cuts: list[int]) -> AnswerReader:
    answer = AnswerReader(DIALECTS[dialect])
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for number, (start, stop) in enumerate(pairwise(edges)):
        answer.feed(data[start:stop], float(number))
    answer.finish(99.0)
    return answer


@given(st.lists(st.integers(0, 10**6), max_size=30))
def test_a_stream_can_be_split_at_any_byte(cuts: list[int]) -> None:
    lmi = feed("lmi", LMI, cuts)
    assert (lmi.token_ids, lmi.output_tokens, lmi.prompt_tokens) == ([7, 8, 9], 3, 5)
    assert len(lmi.token_times) == 3
    openai = feed("openai", OPENAI, cuts)
    assert (openai.token_ids, openai.output_tokens, openai.prompt_tokens) == ([], 3, 5)
    assert len(openai.token_times) == 2  # a third token came without text


def test_a_tokens_time_is_when_its_line_is_complete() -> None:
    first, rest = LMI.split(b"\n", 1)
    answer = AnswerReader(DIALECTS["lmi"])
    answer.feed(first[:10], 1.0)
    answer.feed(first[10:] + b"\n" + rest[:5], 2.0)
    answer.feed(rest[5:], 3.0)
    assert answer.token_times == [2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    "record",
    [
        # A final record without a token is not counted.
        b'{"token":{"id":7}}\n{"token":{"id":-1,"text":"","special_token":true},"generated_text":"a"}\n',
        b'{"token":{"id":[7]},"generated_text":"a"}\n',
    ],
    ids=["token -1 at the end", "ids in arrays"],
)
def test_token_ids_may_be_in_arrays_and_minus_one_is_none(record: bytes) -> None:
    assert feed("lmi", record, []).token_ids == [7]


BAD = {
    "lmi error without newline": ("lmi", FIRST + b'{"error":"it broke","code":424}', "it broke"),
    "lmi error in the final record": (
        "lmi",
        b'{"token":{"id":-1},"generated_text":"p","details":{"finish_reason":"error"}}\n',
        "finish_reason 'error'",
    ),
    "lmi error object": ("lmi", b'{"error":{"message":"deep"}}\n', "deep"),
    "openai error": ("openai", b'data: {"error":{"message":"it broke","code":null}}\n\n', "it broke"),
    "openai without [DONE]": (
        "openai",
        OPENAI.removesuffix(b"data: [DONE]\n\n"),
        "ended before its final record",
    ),
    "empty stream": ("lmi", b"", "ended before its final record"),
    "records after the final one": ("lmi", LMI + LMI, "after the final one"),
    "server counts differently": (
        "lmi",
        LMI.replace(b":3,", b":4,"),
        "received 3 tokens, but the server reports 4",
    ),
    "no usage": (
        "openai",
        b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n',
        "does not report how many tokens",
    ),
    "not JSON": ("lmi", b"<html>\n", "not a record of the lmi dialect: '<html>'"),
    "lines instead of events": ("openai", LMI, "bare JSON object"),
}


@pytest.mark.parametrize(("dialect", "data", "text"), BAD.values(), ids=BAD.keys())
def test_a_bad_response_is_refused_with_a_reason(dialect: str, data: bytes, text: str) -> None:
    with pytest.raises(BadAnswer, match=text.replace("[", r"\[")):
        feed(dialect, data, [])


def test_a_too_long_line_is_refused() -> None:
    answer = AnswerReader(DIALECTS["lmi"])
    answer.feed(b"x" * 15 * 1024 * 1024, 0.0)
    with pytest.raises(BadAnswer, match="longer than"):
        answer.feed(b"x" * 2 * 1024 * 1024, 0.0)


def test_request_bodies_ask_for_greedy_streams_of_fixed_length() -> None:
    request = BenchRequest(0, "a prompt", 2, 17)
    assert json.loads(DIALECTS["lmi"].body(request)) == {
        "inputs": "a prompt",
        "parameters": {
            "max_new_tokens": 17,
            "do_sample": False,
            "temperature": 0,
            "ignore_eos_token": True,
            "details": True,
        },
        "stream": True,
    }
    assert json.loads(DIALECTS["openai"].body(request)) == {
        "model": "lmi",
        "prompt": "a prompt",
        "max_tokens": 17,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
