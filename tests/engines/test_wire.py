"""Encoding and decoding of the messages between web process and engine."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core import (
    AbortReason,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateParams,
    HistogramData,
    PromptLogprob,
    Request,
    RequestOutput,
    SamplingParams,
    SchedulerReply,
    SchedulerSettings,
)
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from engines.wire import (
    Abort,
    ConfigureScheduler,
    Drain,
    GetStats,
    InvocationOutputs,
    Invoke,
    Outputs,
    Reply,
    Submit,
    ToClient,
    ToEngine,
    decode_to_client,
    decode_to_engine,
    encode,
)
from tests.engines.mpi.fakes import make_request

_SAMPLING = SamplingParams(
    max_new_tokens=10_000,
    temperature=0.5,
    top_k=1000,
    logit_bias=((5, 2.0), (60, -3.0)),
    bad_words=((1,), (2, 3)),
    seed=2**64 - 1,
    stop_token_ids=(0, 2**31),
    logprobs=True,
    prompt_logprobs=0,
    generate=GenerateParams(
        no_repeat_ngram_size=9, forced_bos_token_id=(2,), sequence_bias=(((1, 2), 0.5), ((3,), -1e300))
    ),
)
_REQUEST = Request(
    "ü", (0, 2**31), _SAMPLING, 12.5, deadline=99.25, priority=-1, tenant="t", same_prompt_as="b"
)
_OUTPUT = RequestOutput(
    "a",
    token_ids=(7, 2**31),
    logprobs=(-0.5, float("-inf")),
    top_logprobs=(((7, -0.5), (8, -1.0)), ()),
    prompt_logprobs=(PromptLogprob(-2.0, ((1, -0.1),)), PromptLogprob(0.0)),
    finish_reason=FinishReason.STOP_SEQUENCE,
    num_cached_tokens=2**31,
)
_ERROR = RequestOutput("b", error_kind="request_failed", error_message="größer")
_INFO = EngineInfo(
    "m", "MPI", 8, "cuda", "bf16", 2**50, 2**60, 512, 512, 2**20, True, load_seconds={"weights": 0.5}
)
_HISTOGRAM = HistogramData("h", (0.1, float("inf")), (2**40, 0, 1), 0.25, {"part": "model"})
_COPY = EngineStats(_INFO, {"g": 0.5}, {"c": 1e9}, (_HISTOGRAM,))
_TO_ENGINE: list[ToEngine] = [
    Submit((_REQUEST, make_request("defaults"))),
    Invoke(Invocation("a", 0.5, {"Accept": "a/b"}, (("data", b"\x00\xff"),))),
    *(Abort("a", reason) for reason in AbortReason),
    GetStats(2**62),
    Drain(60.5),
    ConfigureScheduler(2**62, {"a": None, "b": True, "c": 2**31, "d": "text", "e": 0.5}),
]
_TO_CLIENT: list[ToClient] = [
    Outputs([]),
    Outputs([_OUTPUT, _ERROR]),
    InvocationOutputs(
        [InvocationOutput("a", AnswerHead(200, "OK", (("name", "value"),)), b"\xff", last=True)]
    ),
    Reply(2**62, EngineStats(_INFO, {}, {}, (), {"1": _COPY})),
    Reply(1, SchedulerReply(None, {})),
    Reply(1, SchedulerReply(SchedulerSettings(1, 2, 3, 4, 5, "fair"), {"max_waiting": "too large"})),
]


@pytest.mark.parametrize("message", _TO_ENGINE, ids=lambda message: type(message).__name__)
def test_messages_to_the_engine_survive_encoding_but_not_truncation(message: ToEngine) -> None:
    encoded = encode(message)
    assert decode_to_engine(encoded) == message
    for length in range(len(encoded)):
        with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
            decode_to_engine(encoded[:length])


def test_a_prompt_that_requests_share_is_sent_once() -> None:
    first = make_request("a", range(3000))
    others = [replace(first, id=str(number), same_prompt_as="a") for number in range(7)]
    elsewhere = replace(first, id="c", same_prompt_as="b")  # its sibling went to another engine
    requests = (first, *others, elsewhere)
    message = decode_to_engine(encode(Submit.of(requests)))
    assert isinstance(message, Submit)
    assert message.whole() == requests
    assert len(encode(Submit.of((first, *others)))) < 2 * len(encode(Submit.of([first])))


@pytest.mark.parametrize("message", _TO_CLIENT, ids=lambda message: type(message).__name__)
def test_messages_to_a_client_survive_encoding(message: ToClient) -> None:
    assert decode_to_client(encode(message)) == message


@given(st.binary(max_size=200))
def test_garbage_raises(data: bytes) -> None:
    for decode in (decode_to_engine, decode_to_client):
        with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
            decode(data)


def test_messages_of_the_other_direction_raise() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_to_engine(encode(Outputs([])))
    with pytest.raises(msgspec.ValidationError):
        decode_to_client(encode(Abort("a", AbortReason.CLIENT_LEFT)))


@pytest.mark.parametrize(
    "message",
    [
        {"type": "Submit"},
        {"type": "Submit", "requests": [{"id": "a"}]},
        {"type": "Abort", "request_id": 5},
        {"type": "Drain", "seconds": "soon"},
        {"type": "GetStats", "token": 1.5},
        {"type": "Reboot"},
        {"request_id": "a"},
        [],
        "Abort",
    ],
)
def test_a_message_of_the_wrong_shape_raises(message: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_to_engine(msgspec.msgpack.encode(message))
