"""The report: verdicts, figures, configurations, provenance and caveats."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from container.measure.compare import report, tables
from container.measure.compare.caveats import caveats
from container.measure.compare.interval import Ratio
from container.measure.compare.plan import Plan, StoppingRule
from container.measure.compare.results import ServerRun
from container.measure.compare.scrape import BatchSizes, KvUse, RoundCounters
from container.measure.compare.summary import MEASURES, spread, times
from container.measure.numbers import NO_VALUE, format_number, gibibytes, percent, seconds
from container.measure.output import Table, plain_json
from container.measure.sections import Section
from tests.container.measure.compare.made_up import (
    PROVENANCE,
    SCENARIO,
    TOKENS,
    compare_speeds,
    make_comparison,
    make_configuration,
    make_figures,
    make_round,
    make_scenario,
)


def row(table: Table, title: str) -> tuple[str, ...]:
    """The cells after a row's title."""
    (match,) = [cells for cells in table.rows if cells[0] == title]
    return match[1:]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.012345, "0.0123"), (1.2345, "1.23"), (12.345, "12.3"), (123.45, "123"), (1234.5, "1234")),
        *((0.0, "0"), (1.2345e-6, "1.23e-06"), (1.2345e7, "1.23e+07")),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_unknown_values_are_a_dash() -> None:
    unknown = [format_number(math.nan), seconds(math.nan)]
    unknown += [percent(None), gibibytes(None), spread(None), times(None)]
    assert set(unknown) == {NO_VALUE}


def test_a_ratio_is_printed_with_its_interval_unless_unbounded() -> None:
    assert times(Ratio(4.0, 3.9, 4.1, 3)) == "4.00x (3.90 to 4.10)"
    assert times(Ratio(4.0, 0.0, math.inf, 1)) == "4.00x"


def test_figures_and_ratios_match_hand_calculations() -> None:
    comparison = compare_speeds({"a": [100.0, 50.0, 10.0], "b": [400.0, 200.0, 40.0]})
    figures = tables.figures_table(comparison, SCENARIO.name)
    assert figures.header == ("", "a", "b")
    assert row(figures, "output tokens/s") == ("50.0 (10.0 to 100)", "200 (40.0 to 400)")
    assert row(figures, "latency p90, s") == ("2.00 (1.00 to 10.0)", "0.500 (0.250 to 2.50)")
    assert row(figures, "time per output token p50, ms") == ("1000 (500 to 5000)", "250 (125 to 1250)")
    ratios = tables.ratios_table(comparison, SCENARIO.name)
    by_measure = {cells[1]: cells[2:] for cells in ratios.rows}
    assert by_measure["output tokens/s"] == (
        "b is 4.00 times as fast as a (95 % interval 4.00 to 4.00)",
        "4.00x (4.00 to 4.00)",
    )
    assert by_measure["latency p90"][1] == "0.250x (0.250 to 0.250)"
    short = tables.short_table(comparison)
    assert short.rows[0][:6] == ("a", SCENARIO.name, "50.0", "1", "2.00", "1")
    assert short.rows[1][:4] == ("b", SCENARIO.name, "200", "4.00x (4.00 to 4.00)")


def test_measures_are_the_time_per_output_token_and_a_median_of_zero_gives_no_ratio() -> None:
    fast = make_figures()
    fast = replace(fast, gap=replace(fast.gap, p50=9.0), tpot=replace(fast.tpot, p50=0.0, p90=0.007))
    slow = replace(fast, tpot=replace(fast.tpot, p50=0.0, p90=0.014))
    rounds = [
        make_round("a", 1, fast),
        make_round("a", 2, fast),
        make_round("b", 1, slow),
        make_round("b", 2, slow),
    ]
    comparison = make_comparison([make_configuration("a"), make_configuration("b")], rounds)
    figures = tables.figures_table(comparison, SCENARIO.name)
    assert row(figures, "time per output token p50, ms") == ("0 (0 to 0)", "0 (0 to 0)")
    assert row(figures, "time per output token p90, ms") == ("7.00 (7.00 to 7.00)", "14.0 (14.0 to 14.0)")
    by_measure = {cells[1]: cells[2:] for cells in tables.ratios_table(comparison, SCENARIO.name).rows}
    assert by_measure["time per output token p50"] == (NO_VALUE, NO_VALUE)
    assert by_measure["time per output token p90"][1] == "2.00x (2.00 to 2.00)"
    (_, summary) = plain_json(report.json_values(comparison, PROVENANCE))["summary"]
    assert (summary["ratios_to_first"]["tpot_p50"], summary["verdicts"]["tpot_p50"]) == (None, NO_VALUE)


def test_the_servers_table() -> None:
    sizes = {"max_rolling_batch_size": "4"}  # without effect under engine=Python
    configs = [make_configuration("a", **sizes), make_configuration("b", engine="Python", **sizes)]
    dynamic = RoundCounters(100, 80, padding_tokens=10, ended_row_tokens=10)
    rounds = [
        make_round("a", 1, batches=BatchSizes(10, 2.0), kv=KvUse(4, 1000.0, 100.0, 200.0, 0.1)),
        make_round("a", 2, batches=BatchSizes(30, 4.0), kv=KvUse(4, 1000.0, 300.0, 400.0, 0.3)),
        make_round("b", 1, batches=BatchSizes(8, 4.0), token_ids=(TOKENS[0], (5, 6, 0, 8))),
        make_round("b", 2, batches=BatchSizes(8, 4.0)),
    ]
    counted = [
        RoundCounters(100, 80, prefix_hit_tokens=20, preemptions=1, recomputed_tokens=20),
        RoundCounters(100, 80, prefix_hit_tokens=30, preemptions=2, recomputed_tokens=10),
        *(dynamic, dynamic),
    ]
    rounds = [replace(one, counters=counters) for one, counters in zip(rounds, counted, strict=True)]
    comparison = make_comparison(configs, rounds)
    table = tables.servers_table(comparison, SCENARIO.name)
    assert table.title == "inside the servers, 2 rounds together (KV slots and waste: medians)"
    how_to_read = " ".join(report.make_report(comparison, PROVENANCE).markdown().split())
    assert "Counts, such as failed requests and responses with the same tokens, are totals." in how_to_read
    assert row(table, "batch, mean") == ("3.50 sequences a step", "4.00 requests a batch")
    assert row(table, "batch occupancy: mean batch / largest batch") == ("87.5 %", NO_VALUE)
    wasted = row(table, "wasted tokens: padding, finished rows, recomputed")
    assert wasted == ("8.8 %", "10.0 %")  # 30 of 200 - 50 + 160 + 30, and 20 of 200
    assert row(table, "preemptions") == ("3", NO_VALUE)
    assert row(table, "tokens recomputed after preemptions") == ("30", NO_VALUE)
    assert row(table, "padding tokens") == (NO_VALUE, "20")
    assert row(table, "prompt tokens found in the prefix cache") == ("50 (25.0 %)", NO_VALUE)
    assert row(table, "KV slots allocated, mean") == ("200 (20.0 % of all)", NO_VALUE)
    assert row(table, "KV slots allocated, peak") == ("300 (30.0 % of all)", NO_VALUE)
    assert row(table, "waste: allocated slots without a token") == ("20.0 %", NO_VALUE)
    assert row(table, "responses with the same tokens as a") == (NO_VALUE, "3 of 4")
    assert row(table, "first difference at output token") == (NO_VALUE, "3 (round 1, request 2)")


def test_the_markdown_describes_the_run_and_the_configurations() -> None:
    comparison = compare_speeds({"a": [100.0, 101.0], "b": [400.0, 410.0]})
    extra = Section("Extra", "Words.", (Table("", ("x", "y"), (("1", "2"),)),))
    text = report.make_report(comparison, PROVENANCE, [extra]).markdown()
    assert text.startswith("# Comparison of a and b\n")
    for expected in (
        "medians of 2 rounds",
        "`lmi compare a b`, 2030-01-02 03:04 UTC",
        "2 cores (Abacus 9)",
        "torch 9.9",
        "each round has 2 requests by 2 users, 8 tokens in, 4 out",
        "- 8 tokens in, 4 out, output tokens/s: b is 4.03 times as fast as a",
        "a (round 1), b (rounds 1 and 2), a (round 2)",
        "Their effective values are identical.",
        "## Extra\n\nWords.\n\n| x | y |\n| --- | ---: |\n| 1 | 2 |",
        "## Caveats",
    ):
        assert expected in text, expected
    assert "nan" not in text.lower()


def test_the_report_describes_the_warm_up_of_each_scenario() -> None:
    scenarios = [make_scenario("first", 32, 128, 64, 8), make_scenario("second", 256, 32, 64, 8)]
    results = [make_round("a", 1, scenario=one.name) for one in scenarios]
    comparison = make_comparison([make_configuration("a")], results, scenarios)
    (run,) = [
        one for one in report.make_report(comparison, PROVENANCE).sections if one.title == "What was run"
    ]
    assert {
        "first: each round has 64 requests by 8 users, 32 tokens in, 128 out; the warm-up of each server, not counted,"
        " has 8 requests by 8 users, 32 tokens in, 16 out",
        "second: each round has 64 requests by 8 users, 256 tokens in, 32 out; the warm-up of each server, not counted,"
        " has 8 requests by 8 users, 256 tokens in, 16 out",
    } < set(run.bullets)


def test_the_report_gives_the_reason_to_stop_differing_options_and_shared_or_running_servers() -> None:
    running = make_configuration("b", paged_attention="false")
    configs = [
        make_configuration("a", paged_attention="true"),
        replace(running, url="http://b:1", origin="a running server"),
    ]
    plan = Plan((SCENARIO,), 1, seed=0, stopping=StoppingRule(0.03, 50))
    comparison = replace(
        make_comparison(configs, [make_round("a", 1), make_round("b", 1)], plan=plan),
        stopped="the time limit was reached",
        server_runs=(ServerRun(("a", "c"), (1,), 2.0, 1 << 30), ServerRun(("b",), (1,), None, None)),
    )
    text = report.make_report(comparison, PROVENANCE).markdown()
    assert (
        "1 round (the time limit was reached), one server at a time, in the order: a, then with changed settings c"
        in text
    )
    assert "| b | a running server, http://b:1 | MPI | model | - | - |" in text
    assert "b: already running" in text
    assert "--seed" not in "".join(caveats(comparison))
    foreign = replace(comparison, configs=(configs[0], replace(configs[1], engine="")))
    assert "b: a server of another kind may have kept the prompts" in "".join(caveats(foreign))
    assert "| option.paged_attention | true | false |" in text


def test_the_configurations_table_has_the_median_start_up_and_the_highest_peak_of_all_servers() -> None:
    server_runs = tuple(
        ServerRun(("a",), (number,), float(start), peak << 30)
        for number, (start, peak) in enumerate([(2, 1), (9, 3), (4, 2)], start=1)
    )
    comparison = replace(compare_speeds({"a": [1.0] * 3}), server_runs=server_runs)
    ((*_, start_up, memory),) = tables.configurations_table(comparison).rows
    assert (start_up, memory) == ("4.00 (2.00 to 9.00) s", gibibytes(3 << 30))


def test_rows_without_any_value_are_omitted() -> None:
    table = tables.servers_table(compare_speeds({"a": [1.0], "b": [1.0]}), SCENARIO.name)
    assert [cells[0] for cells in table.rows] == ["responses with the same tokens as a", "failed requests"]


def test_a_pipe_in_a_cell_is_escaped() -> None:
    assert Table("t", ("a",), (("x|y\nz",),)).markdown().splitlines()[-1] == "| x\\|y z |"


def test_caveats_list_failures_and_the_limits_of_the_client() -> None:
    configs = [make_configuration("a"), make_configuration("b", engine="Python")]
    rounds = [
        make_round("a", 1, make_figures(100.0)),
        make_round("a", 2, make_figures(100.0, limited="the client itself computed all the time")),
        make_round("b", 1, make_figures(90.0, errors=["gone away"])),
        make_round("b", 2, make_figures(120.0)),
    ]
    comparison = make_comparison(configs, rounds)
    text = "\n".join(caveats(comparison))
    assert "1 of 2 requests failed: b, 8 tokens in, 4 out, round 1: gone away" in text
    assert "a, 8 tokens in, 4 out, round 2: the client itself computed all the time." in text
    assert "The two mean batch sizes cannot be compared" in text
    first, *_ = report.make_report(comparison, PROVENANCE).findings
    assert first.kind == "failed"
    assert str(first).startswith("failed requests: 1 of 8 requests failed. ")


def test_the_json_has_no_nan_and_contains_every_round() -> None:
    comparison = compare_speeds({"a": [100.0, math.nan], "b": [200.0, 300.0]})

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    data = json.loads(
        json.dumps(plain_json(report.json_values(comparison, PROVENANCE))), parse_constant=refuse
    )
    rounds = [(one["configuration"], one["round"]) for one in data["rounds"]]
    assert rounds == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert data["rounds"][1]["metrics"]["output_tokens_per_second"] is None
    assert data["rounds"][0]["token_ids"] == [list(ids) for ids in TOKENS]
    (summary,) = [one for one in data["summary"] if one["configuration"] == "b"]
    assert summary["ratios_to_first"]["output_tokens_per_second"]["value"] == 2.0
    assert summary["ratios_to_first"]["output_tokens_per_second"]["high"] is None
    assert summary["verdicts"]["output_tokens_per_second"].startswith("too few rounds: one")
    assert summary["same_tokens_as_first"]["num_identical"] == 4
    assert summary["smallest_visible"] == {measure.key: None for measure in MEASURES}
    assert data["rounds"][0]["requests"] == []
    assert data["configurations"][0]["batch_limit"] is None
    assert data["setting"]["machine"] == PROVENANCE.machine
    markdown = report.make_report(comparison, PROVENANCE).markdown()
    assert [f"## {one['title']}" for one in data["sections"]] == re.findall(r"^## .*", markdown, re.MULTILINE)
    assert all(one["sentence"] in markdown for one in data["findings"])
