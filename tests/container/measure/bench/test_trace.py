"""Trace files in the formats of Mooncake and Azure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from container.measure.bench.arrivals import RecordedArrivals, Users
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


def write_trace(folder: Path, text: str, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def arrival_times(scenario: Scenario) -> list[float]:
    assert isinstance(scenario.arrivals, RecordedArrivals)
    return [round(time, 6) for time in scenario.arrivals.times]


def test_mooncake_traces_give_prompts_with_shared_prefixes(tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    found = read_trace(write_trace(tmp_path, MOONCAKE))
    assert (found.name, found.workload.num_requests, arrival_times(found)) == (
        "trace.jsonl",
        3,
        [0.0, 3.053, 3.053],
    )
    first, second, third = make_requests(found.workload, tiny_tokenizer, 0)
    # Prompts have at least 8 tokens, so that all differ. Responses have at least one.
    assert [one.prompt_tokens for one in (first, second, third)] == [1300, 1100, 8]
    assert [one.output_tokens for one in (first, second, third)] == [52, 26, 1]
    ids = [tiny_tokenizer.encode(one.prompt).ids for one in (first, second, third)]
    assert [len(one) for one in ids] == [1300, 1100, 8]
    # The prompts share two blocks of 512 tokens, except for the space between the blocks.
    common = next(index for index, (one, other) in enumerate(zip(*ids[:2], strict=False)) if one != other)
    assert 1000 <= common <= 1028
    assert ids[2][:4] != ids[0][:4]


def test_azure_rows_are_sorted_by_time(tmp_path: Path) -> None:
    found = read_trace(write_trace(tmp_path, AZURE))
    assert arrival_times(found) == [0.0, 1.5, 4.314579]
    assert found.workload.prompts.draw(3, None) == [374, 8, 396]  # type: ignore[arg-type]
    assert found.workload.outputs.draw(3, None) == [44, 55, 109]  # type: ignore[arg-type]
    newer = read_trace(write_trace(tmp_path, NEWER_AZURE))
    assert arrival_times(newer) == [0.0, 1.5]
    assert newer.workload.prompts.draw(2, None) == [2162, 2399]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
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
        (AZURE.replace("\n", "\r"), "line 1: not a request: new-line character"),
        (AZURE + "1" * 200_000 + ",1,2\n", "line 5: not a request of Azure's traces: field larger than"),
    ],
)
def test_errors_in_a_trace_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_trace(write_trace(tmp_path, text))


def test_requests_without_generated_tokens_get_one_output_token(tmp_path: Path) -> None:
    path = write_trace(tmp_path, '{"timestamp": 1, "input_length": 3, "output_length": 0}\n' * 2)
    found = LoadChoice(trace=path).scenario(PRESETS["aws-1"])
    assert found.workload.title == "8 tokens in, 1 out on average"
    assert found.warm_up().workload.outputs == Fixed(1)
    longer = LoadChoice(trace=path, output_tokens=16).scenario(PRESETS["aws-1"])
    assert longer.workload.outputs.draw(2, None) == [16, 16]  # type: ignore[arg-type]


def test_a_trace_is_scaled_and_shortened_like_a_preset(tmp_path: Path) -> None:
    path = write_trace(tmp_path, AZURE)
    half = LoadChoice(trace=path, scale=0.5).scenario(PRESETS["aws-1"])
    assert arrival_times(half) == [0.0, 3.0, 8.629158]
    assert half.workload.prompts.draw(3, None) == [187, 8]  # type: ignore[arg-type]
    assert half.workload.num_requests == 2
    assert LoadChoice(trace=path, scale=2.0).scenario(PRESETS["aws-1"]).workload.num_requests == 3
    assert LoadChoice(trace=path, requests=2).scenario(PRESETS["aws-1"]).workload.num_requests == 2
    with pytest.raises(
        BenchError, match="--requests: more than the trace has \\(got 4\\); allowed: at most 3"
    ):
        LoadChoice(trace=path, requests=4).scenario(PRESETS["aws-1"])


def test_lengths_of_a_shortened_trace_are_those_of_its_first_requests(tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": {}, "output_length": {}}}\n'
    rows = [line.format(time, *((200, 50) if time < 50 else (4000, 900))) for time in range(100)]
    path = write_trace(tmp_path, "".join(rows))

    def describe(**options: Any) -> str:
        return LoadChoice(trace=path, **options).scenario(PRESETS["aws-1"]).workload.describe()

    shown = "200 to 200 tokens in (recorded, mean 200), 50 to 50 out (recorded, mean 50)"
    assert describe(requests=50) == shown
    assert describe(requests=50, input_tokens=200, output_tokens=50) == shown
    assert describe(requests=50, lengths="fixed") == "200 tokens in, 50 out"
    half = "100 to 100 tokens in (recorded, mean 100), 25 to 25 out (recorded, mean 25)"
    assert describe(scale=0.5) == half
    assert describe(scale=0.5, input_tokens=100, output_tokens=25) == half


def test_shared_blocks_of_a_shortened_trace_scale_with_its_own_prompts(tmp_path: Path) -> None:
    path = write_trace(tmp_path, MOONCAKE)
    short = LoadChoice(trace=path, requests=2, input_tokens=600).scenario(PRESETS["aws-1"]).workload
    assert short.prompts.draw(2, None) == [650, 550]  # type: ignore[arg-type]
    assert short.prefixes is not None
    assert short.prefixes.block_tokens == 256


def test_a_trace_shorter_than_the_warm_up_limits_the_warm_up(
    tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    path = write_trace(tmp_path, MOONCAKE)
    warm_up = read_trace(path).warm_up(8)
    requests = make_requests(warm_up.workload, tiny_tokenizer, 0)
    assert [one.prompt_tokens for one in requests] == [1300, 1100, 8]
    assert warm_up.arrivals == Users(3)
    fixed = LoadChoice(trace=path, lengths="fixed").scenario(PRESETS["aws-1"]).warm_up(8)
    assert len(make_requests(fixed.workload, tiny_tokenizer, 0)) == 3
