"""Trace files in the forms in which Mooncake and Azure publish theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from container.measure.bench.arrivals import RecordedArrivals
from container.measure.bench.choice import LoadChoice
from container.measure.bench.lengths import Fixed
from container.measure.bench.scenario import PRESETS, Scenario
from container.measure.bench.trace import read_trace
from container.measure.bench.workload import BenchError, make_requests

MOONCAKE = """\
{"timestamp": 27482, "input_length": 1300, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 30535, "input_length": 1100, "output_length": 26, "hash_ids": [46, 47, 2353]}

{"timestamp": 30535, "input_length": 6, "output_length": 0, "hash_ids": [9]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:48.1805900,3,55
"""
NEWER_AZURE = """\
\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r
2024-05-10 00:00:00.009930+00:00,2162,5\r
2024-05-10 00:00:01.509930+00:00,2399,6\r
"""


def trace(folder: Path, text: str, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def times_of(scenario: Scenario) -> list[float]:
    assert isinstance(scenario.arrivals, RecordedArrivals)
    return [round(time, 6) for time in scenario.arrivals.times]


def test_mooncakes_lines_are_read_with_the_blocks_that_prompts_share(
    tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    found = read_trace(trace(tmp_path, MOONCAKE))
    assert (found.name, found.workload.num_requests, times_of(found)) == (
        "trace.jsonl",
        3,
        [0.0, 3.053, 3.053],
    )
    first, second, third = make_requests(found.workload, tiny_tokenizer, 0)
    # A prompt has at least 8 tokens, so that all can differ, and an answer has one.
    assert [one.prompt_tokens for one in (first, second, third)] == [1300, 1100, 8]
    assert [one.output_tokens for one in (first, second, third)] == [52, 26, 1]
    ids = [tiny_tokenizer.encode(one.prompt).ids for one in (first, second, third)]
    assert [len(one) for one in ids] == [1300, 1100, 8]
    # Two whole blocks of 512 tokens are the same, but for the space at which they were joined.
    common = next(place for place, (one, other) in enumerate(zip(*ids[:2], strict=False)) if one != other)
    assert 1000 <= common <= 1028
    assert ids[2][:4] != ids[0][:4]


def test_azures_rows_are_read_and_put_in_order(tmp_path: Path) -> None:
    found = read_trace(trace(tmp_path, AZURE))
    assert times_of(found) == [0.0, 1.5, 4.314579]
    assert found.workload.prompts.draw(3, None) == [374, 8, 396]  # type: ignore[arg-type]
    assert found.workload.outputs.draw(3, None) == [44, 55, 109]  # type: ignore[arg-type]
    newer = read_trace(trace(tmp_path, NEWER_AZURE))
    assert times_of(newer) == [0.0, 1.5]
    assert newer.workload.prompts.draw(2, None) == [2162, 2399]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
        ('{"timestamp": 1}\n', "line 1: .*input_length"),
        ('{"timestamp": 1, "input_length": -1, "output_length": 2}\n', r"line 1: .*>= 0.*input_length"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 2}\nx\n',
            "line 2: not a request of Mooncake's traces",
        ),
        ("time,in,out\n1,2,3\n", "line 1: .*no column TIMESTAMP"),
        (AZURE + "2023-11-16 18:15:51,1\n", "line 5: .*2 cells, but the header has 3"),
        (AZURE + "yesterday,1,2\n", "line 5: .*yesterday"),
        (AZURE + "2023-11-16 18:15:51,some,2\n", "line 5: .*input_length"),
        ("\xff\xfe\x00", "line 1: not a request"),
    ],
)
def test_what_is_no_trace_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        read_trace(trace(tmp_path, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"cannot read .*nothing: No such file"):
        read_trace(tmp_path / "nothing")


def test_a_trace_without_generated_tokens_has_answers_of_one(tmp_path: Path) -> None:
    path = trace(tmp_path, '{"timestamp": 1, "input_length": 3, "output_length": 0}\n' * 2)
    found = LoadChoice(trace=path).scenario(PRESETS["aws-1"])
    assert found.workload.title == "8 tokens in, 1 out on average"
    assert found.warm_up().workload.outputs == Fixed(1)
    longer = LoadChoice(trace=path, output_tokens=16).scenario(PRESETS["aws-1"])
    assert longer.workload.outputs.draw(2, None) == [16, 16]  # type: ignore[arg-type]


def test_a_trace_is_scaled_and_cut_like_a_preset(tmp_path: Path) -> None:
    path = trace(tmp_path, AZURE)
    half = LoadChoice(trace=path, scale=0.5).scenario(PRESETS["aws-1"])
    assert times_of(half) == [0.0, 3.0, 8.629158]
    assert half.workload.prompts.draw(3, None) == [187, 8, 198]  # type: ignore[arg-type]
    assert half.workload.num_requests == 2
    assert LoadChoice(trace=path, scale=2.0).scenario(PRESETS["aws-1"]).workload.num_requests == 3
    assert LoadChoice(trace=path, requests=2).scenario(PRESETS["aws-1"]).workload.num_requests == 2
    with pytest.raises(
        BenchError, match="--requests: more than the trace has \\(got 4\\); allowed: at most 3"
    ):
        LoadChoice(trace=path, requests=4).scenario(PRESETS["aws-1"])
