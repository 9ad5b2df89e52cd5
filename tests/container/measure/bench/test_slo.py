"""Parsing of --slo."""

from __future__ import annotations

import math

import pytest

from container.measure.bench.slo import Slo, parse_slo
from container.measure.bench.workload import BenchError


def test_limits_are_parsed_with_their_units() -> None:
    assert parse_slo("ttft=500ms,tpot=50ms,latency=2s") == Slo(0.5, 0.05, 2.0)
    assert parse_slo(" latency = 1.5 s ") == Slo(math.inf, math.inf, 1.5)
    assert parse_slo("ttft=500ms,latency=2s").describe() == "ttft 500 ms, latency 2.00 s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttfd=1s", r"unknown limit \(got ttfd\); did you mean ttft\?; allowed: ttft, tpot, latency"),
        ("", r"unknown limit \(got \)"),
        ("ttft=500", r"ttft is not a time \(got 500\); allowed: a number with ms or s"),
        ("ttft=-1s", "ttft is not a time"),
        ("ttft=0ms", "ttft is not a time"),
        ("ttft=1s,ttft=2s", "ttft is given twice"),
    ],
)
def test_wrong_limits_are_refused(text: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse_slo(text)
