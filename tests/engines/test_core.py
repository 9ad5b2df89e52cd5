"""Request outputs, sampling parameters and finish reasons."""

from __future__ import annotations

import pytest

from engines.core import FinishReason, RequestOutput, SamplingParams


@pytest.mark.parametrize(
    ("output", "finished"),
    [
        (RequestOutput("a"), False),
        (RequestOutput("a", (1, 2)), False),
        (RequestOutput("a", (1,), finish_reason=FinishReason.LENGTH), True),
        (RequestOutput("a", finish_reason=FinishReason.EOS_TOKEN), True),
        (RequestOutput("a", error_kind="request_failed"), True),
    ],
)
def test_an_output_with_a_finish_reason_or_an_error_is_finished(
    output: RequestOutput, finished: bool
) -> None:
    assert output.finished is finished


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (-0.0, True), (1e-9, False), (1.0, False)])
def test_only_temperature_zero_is_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(1, temperature=temperature).greedy is greedy


def test_finish_reasons_are_the_strings_of_the_response() -> None:
    assert [str(reason) for reason in FinishReason] == ["length", "eos_token", "stop_sequence"]
