"""The calls of `generate` in one batch: their time limits, and which rows share one."""

from __future__ import annotations

from engines.core import FinishReason
from tests.engines.python.conftest import RecordedOutputs, Runner, StepClock, break_in_step, request
from tests.support.tiny_architectures import make_model

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
