"""The calls of `generate` in one batch: their time limits, and which rows share one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.core import FinishReason
from tests.engines.python.conftest import RecordedOutputs, Runner, StepClock, break_in_step, request
from tests.support.tiny_architectures import CONTEXT, VOCAB_SIZE, generate_alone, make_model

_SECONDS = 40.0
"""Limit by the clock of these tests: more than one call of 8 tokens takes, and less than two."""


def _check_complete(heard: RecordedOutputs, names: str) -> None:
    ends = {name: heard.end(name).finish_reason or heard.end(name).error_message for name in names}
    assert ends == dict.fromkeys(names, FinishReason.LENGTH)


def test_each_group_of_equal_prompt_length_has_its_own_time_limit() -> None:
    runner = Runner(make_model("llama"), StepClock(), takes_mask=False, seconds=_SECONDS)
    heard = runner.run(
        [request("a", [5]), request("b", [6, 7]), request("c", [8]), request("d", [9, 10, 11])]
    )
    assert heard.calls == [["a", "c"], ["b"], ["d"]]
    _check_complete(heard, "abcd")


def test_each_half_of_a_failed_batch_has_its_own_time_limit() -> None:
    runner = Runner(make_model("llama"), StepClock(), seconds=_SECONDS)
    break_in_step(runner, 2)
    heard = runner.run([request("a", [5]), request("b", [6]), request("c", [7])])
    assert heard.calls == [["a", "b", "c"], ["a", "b"], ["c"]]
    _check_complete(heard, "abc")


def test_a_group_that_reaches_its_limit_leaves_the_next_one_the_whole_time() -> None:
    runner = Runner(make_model("llama"), StepClock(), takes_mask=False, seconds=_SECONDS)
    heard = runner.run([request("slow", [5], 20), request("b", [6, 7])])
    assert heard.end("slow").error_kind == "deadline_exceeded"
    _check_complete(heard, "b")


_TRAINED = 12
_TYPES = {"longrope": "phi3", "dynamic": "llama"}
_ROPES: dict[str, dict[str, Any]] = {
    "longrope": {
        "short_factor": [1.0] * 4,
        "long_factor": [1.0, 4.0, 9.0, 20.0],
        "original_max_position_embeddings": _TRAINED,
    },
    "dynamic": {"factor": 8.0},
}


def _make_rotary(kind: str) -> Any:
    """A tiny model whose rotary frequencies change once a sequence is longer than `_TRAINED`."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        _TYPES[kind],
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=_TRAINED if kind == "dynamic" else CONTEXT,
        original_max_position_embeddings=_TRAINED,
        rope_parameters={"rope_type": kind, "rope_theta": 100.0, **_ROPES[kind]},
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=3,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.5)
    return model


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_rows_that_would_change_the_rotary_frequencies_of_others_do_not_share_their_call(kind: str) -> None:
    shapes = {
        "a": (2, 6),
        "long": (8, 10),
        "deep": (1, 9),
        "wide": (10, 2),
        "b": (3, 5),
        "longer": (9, 12),
        "again": (13, 4),
    }
    prompts = {
        name: [5 + 7 * i + place for place in range(length)]
        for i, (name, (length, _)) in enumerate(shapes.items())
    }
    heard = Runner(_make_rotary(kind)).run(
        [request(name, prompts[name], new) for name, (_, new) in shapes.items()]
    )
    assert heard.calls == [["a", "deep", "b"], ["long"], ["wide"], ["longer"], ["again"]]
    for name, (_, new) in shapes.items():
        assert heard.tokens(name) == generate_alone(_make_rotary(kind), prompts[name], new), name
