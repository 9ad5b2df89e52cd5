"""Encoding and decoding of the messages between web process and engine."""

from __future__ import annotations

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
    SchedulerSettings,
)
from engines.wire import (
    Abort,
    ConfigureScheduler,
    Drain,
    GetStats,
    Outputs,
    SchedulerState,
    Stats,
    Submit,
    ToClient,
    ToEngine,
    decode_to_client,
    decode_to_engine,
    encode,
)

_NAMES = st.text(max_size=20)
_TOKENS = st.lists(st.integers(0, 2**31), max_size=30).map(tuple)
_FLOATS = st.floats(allow_nan=False)
_SAMPLING = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(1, 10_000),
    temperature=_FLOATS,
    top_k=st.integers(0, 1000),
    top_p=_FLOATS,
    repetition_penalty=_FLOATS,
    seed=st.integers(0, 2**64 - 1),
    stop_token_ids=_TOKENS,
    logprobs=st.booleans(),
    generate=st.none()
    | st.builds(
        GenerateParams,
        no_repeat_ngram_size=st.integers(0, 9),
        forced_bos_token_id=_TOKENS,
        sequence_bias=st.lists(st.tuples(_TOKENS, _FLOATS), max_size=3).map(tuple),
    ),
)
_REQUESTS = st.builds(Request, id=_NAMES, prompt_token_ids=_TOKENS, sampling=_SAMPLING, arrival_time=_FLOATS)
_TOP = st.lists(st.tuples(st.integers(0, 2**31), _FLOATS), max_size=3).map(tuple)
_OUTPUTS = st.builds(
    RequestOutput,
    id=_NAMES,
    token_ids=_TOKENS,
    logprobs=st.lists(_FLOATS, max_size=5).map(tuple),
    top_logprobs=st.lists(_TOP, max_size=3).map(tuple),
    prompt_logprobs=st.lists(st.builds(PromptLogprob, _FLOATS, _TOP), max_size=3).map(tuple),
    num_cached_tokens=st.integers(0, 2**31),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    error_kind=_NAMES,
    error_message=_NAMES,
)
_NUMBERS = st.dictionaries(_NAMES, _FLOATS, max_size=4)
_INFO = st.builds(
    EngineInfo,
    model=_NAMES,
    engine=_NAMES,
    world_size=st.integers(1, 8),
    device=_NAMES,
    dtype=_NAMES,
    kv_capacity_tokens=st.integers(0, 2**50),
    kv_capacity_bytes=st.integers(0, 2**60),
    block_size=st.integers(1, 512),
    max_num_seqs=st.integers(1, 512),
    max_model_len=st.integers(1, 2**20),
    paged_attention=st.booleans(),
    load_seconds=_NUMBERS,
)
_HISTOGRAMS = st.builds(
    HistogramData,
    name=_NAMES,
    bounds=st.lists(_FLOATS, max_size=4).map(tuple),
    counts=st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    sum=_FLOATS,
    labels=st.dictionaries(_NAMES, _NAMES, max_size=2),
)
_STATS = st.builds(
    EngineStats,
    info=_INFO,
    gauges=_NUMBERS,
    counters=_NUMBERS,
    histograms=st.lists(_HISTOGRAMS, max_size=3).map(tuple),
)
_TO_ENGINE = st.one_of(
    st.builds(Submit, _REQUESTS),
    st.builds(Abort, _NAMES, st.sampled_from(AbortReason)),
    st.builds(GetStats, st.integers(0, 2**62)),
    st.builds(Drain, _FLOATS),
    st.builds(
        ConfigureScheduler,
        st.integers(0, 2**62),
        st.dictionaries(_NAMES, st.none() | st.booleans() | st.integers(0, 2**31) | _NAMES, max_size=3),
    ),
)
_TO_CLIENT = st.one_of(
    st.builds(Outputs, st.lists(_OUTPUTS, max_size=4)),
    st.builds(Stats, st.integers(0, 2**62), _STATS),
    st.builds(
        SchedulerState,
        st.integers(0, 2**62),
        st.none()
        | st.builds(
            SchedulerSettings, *[st.integers(1, 2**31)] * 4, st.none() | st.integers(1, 2**31), _NAMES
        ),
        st.dictionaries(_NAMES, _NAMES, max_size=3),
    ),
)


@given(_TO_ENGINE)
def test_messages_to_the_engine_survive_encoding(message: ToEngine) -> None:
    assert decode_to_engine(encode(message)) == message


@given(_TO_CLIENT)
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
        {"type": "Submit", "request": {"id": "a"}},
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


@given(_TO_ENGINE, st.integers(1, 20))
def test_a_truncated_message_raises(message: ToEngine, missing: int) -> None:
    with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
        decode_to_engine(encode(message)[:-missing])
