"""`lmi kv-waste`: simulated runs of the allocators, compared with results computed by hand."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.measure import kv_waste_command
from container.measure.kv_waste import ALLOCATIONS, Allocation, AllocationResult, WasteLoad, measure_waste
from container.measure.kv_waste_command import kv_waste
from container.measure.output import Table

CONTIGUOUS, PAGED, OPTIMISTIC = ALLOCATIONS
LOAD = WasteLoad(
    num_requests=60,
    prompt_tokens=64,
    mean_output_tokens=16.0,
    max_new_tokens=64,
    pool_tokens=1024,
    block_size=16,
    max_prefill_tokens=4096,
    seed=3,
)


def test_lengths_follow_a_truncated_exponential_distribution_and_depend_on_the_seed() -> None:
    load = dataclasses.replace(LOAD, num_requests=20_000, mean_output_tokens=128.0, max_new_tokens=512)
    lengths = load.output_lengths()
    assert (min(lengths), max(lengths)) == (1, 512)
    # The mean of a truncated exponential distribution, plus half a token for rounding up.
    assert statistics.fmean(lengths) == pytest.approx(119.0, rel=0.03)
    assert lengths == load.output_lengths()
    assert lengths != dataclasses.replace(load, seed=4).output_lengths()


@pytest.mark.parametrize(
    ("allocation", "block_counts"),
    [(CONTIGUOUS, [6] * 30), (PAGED, [4] * 15 + [5] * 15), (OPTIMISTIC, [4] * 15 + [5] * 15)],
    ids=["contiguous", "paged", "optimistic"],
)
def test_waste_of_one_request_matches_a_hand_calculation(
    allocation: Allocation, block_counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 input and 31 output tokens. The last token is never computed, so its step stores no keys and values."""
    monkeypatch.setattr(WasteLoad, "output_lengths", lambda self: [31])
    load = dataclasses.replace(LOAD, num_requests=1, prompt_tokens=50, max_new_tokens=40, pool_tokens=192)
    wasted = [1 - (50 + i) / (16 * count) for i, count in enumerate(block_counts)]
    result = measure_waste(allocation, load)
    assert result.waste == pytest.approx(statistics.fmean(wasted))
    assert result.allocated == pytest.approx(sum(block_counts) / 12 / 31)
    assert (result.max_running, result.steps, result.preemptions) == (1, 31, 0)
    assert result.mean_running == pytest.approx(30 / 31)  # nothing runs after the last step
    reserved = {CONTIGUOUS: 0, PAGED: sum(6 - count for count in block_counts), OPTIMISTIC: 0}[allocation]
    assert result.reserved == pytest.approx(reserved / 12 / 31)


def test_paging_wastes_less_of_the_same_memory_and_only_optimistic_admission_preempts() -> None:
    contiguous, paged, optimistic = (measure_waste(allocation, LOAD) for allocation in ALLOCATIONS)
    assert contiguous.waste > 0.3
    assert paged.waste < 0.12
    assert optimistic.waste < 0.12
    assert contiguous.max_running == paged.max_running == 1024 // 128
    assert optimistic.mean_running_loaded > 1.3 * contiguous.mean_running_loaded
    assert optimistic.steps < paged.steps == contiguous.steps
    assert contiguous.preemptions == paged.preemptions == 0
    assert contiguous.recomputed_tokens == paged.recomputed_tokens == 0
    assert optimistic.preemptions > 0
    assert optimistic.recomputed_tokens > 0


SMALL = ("--requests", "40", "--prompt-tokens", "64", "--mean-output-tokens", "16", "--max-new-tokens", "64")


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "waste.json"
    result = CliRunner().invoke(kv_waste, [*SMALL, "--pool-tokens", "1024", "--json", str(path)])
    assert (result.exit_code, result.exception) == (0, None)
    names = [allocation.name for allocation in ALLOCATIONS]
    for text in (*names, "KV waste", "1 - stored tokens / allocated slots"):
        assert text in result.stdout
    values = json.loads(path.read_text())
    assert [entry["allocation"] for entry in values["results"]] == names
    assert values["load"]["prompt_tokens"] == 64


def test_each_figure_is_in_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = AllocationResult("paged", 0.1, 0.2, 0.3, 4.0, 5.0, 6, 7, 8, 9)
    tables: list[Table] = []
    monkeypatch.setattr(kv_waste_command, "measure_waste", lambda *arguments: made_up)
    monkeypatch.setattr(kv_waste_command, "publish", lambda found, *others: tables.extend(found))
    assert CliRunner().invoke(kv_waste, SMALL).exit_code == 0
    assert dict(zip(tables[0].header, tables[0].rows[0], strict=True)) == {
        "": "paged",
        "KV waste": "10.0 %",
        "allocated": "20 %",
        "reserved": "30 %",
        "running": "4.0",
        "loaded": "5.0",
        "most": "6",
        "preemptions": "7",
        "recomputed": "8",
        "steps": "9",
    }


def test_a_pool_too_small_for_one_request_is_refused() -> None:
    result = CliRunner().invoke(kv_waste, [*SMALL, "--pool-tokens", "96"])
    assert result.exit_code == 2
    assert "too small for one request of 128 tokens (got 96)" in result.stderr


def test_an_unwritable_json_file_gives_an_error_message(tmp_path: Path) -> None:
    path = tmp_path / "none" / "waste.json"
    result = CliRunner().invoke(kv_waste, [*SMALL, "--json", str(path)])
    assert result.exit_code == 1
    assert f"cannot write {path}" in result.stderr
