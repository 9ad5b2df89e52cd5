"""Rounds with fake contenders, from the first start to the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container.measure.bench.lengths import Fixed
from container.measure.bench.workload import load_tokenizer
from tests.bench import report
from tests.bench.contender import Broken
from tests.bench.limits import Limits
from tests.bench.made_up import FakeContender, results_of
from tests.bench.model import Matrices
from tests.bench.quiet import Busy, Load
from tests.bench.results import write_json
from tests.bench.rounds import Rounds
from tests.bench.workloads import Shape
from tests.support.tokenizers import save_gpt2

SHAPE = Shape("w", 8, Fixed(4), 3, 2)
ALONE = Shape("alone", 8, Fixed(4), 3, 1)


@pytest.fixture
def journal() -> list[str]:
    return []


def make_rounds(
    tmp_path: Path, journal: list[str], *, breaks: str = "", shapes: tuple[Shape, ...] = (SHAPE,), **more: Any
) -> Rounds:
    """Two rounds of `a`, and of `b`, which is half as fast. breaks: the one whose first life breaks."""
    save_gpt2(tmp_path, as_json=True)
    contenders = [
        FakeContender("a", 1.0, journal, int(breaks == "a")),
        FakeContender("b", 2.0, journal, int(breaks == "b"), **more),
    ]
    return Rounds(
        contenders={contender.name: contender for contender in contenders},
        shapes=shapes,
        num_rounds=2,
        tokenizer=load_tokenizer(tmp_path),
        matrices=Matrices(1_000_000, 100_000),
        logs=tmp_path,
        quiet=lambda: Load(0.01, ()),
        measure_limits=lambda: Limits(2, 100.0, None, 20.0),
        say=lambda text: None,
    )


def test_contenders_take_turns_and_each_is_warmed_up_and_stopped(tmp_path: Path, journal: list[str]) -> None:
    rounds = make_rounds(tmp_path, journal)
    rounds.run()
    warm_up, timed = "2 by 2", "3 by 2"
    assert journal == [
        *("a starts", f"a {warm_up}", f"a {timed}", "a ends"),
        *("b starts", f"b {warm_up}", f"b {timed}", f"b {timed}", "b ends"),
        *("a starts", f"a {warm_up}", f"a {timed}", "a ends"),
    ]
    assert [(run.contender, run.round) for run in rounds.runs()] == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert all(run.figures.num_errors == 0 for run in rounds.runs())


def test_a_peer_that_breaks_is_left_out_from_then_on(tmp_path: Path, journal: list[str]) -> None:
    rounds = make_rounds(tmp_path, journal, breaks="b")
    rounds.contenders = {**rounds.contenders, "c": FakeContender("c", 2.0, journal)}
    rounds.num_rounds = 3
    rounds.run()
    assert rounds.broken == {"b": "b broke"}
    assert journal.count("b starts") == journal.count("b ends") == 1
    assert {run.contender for run in rounds.runs()} == {"a", "c"}


def test_the_benchmark_ends_if_the_first_contender_breaks(tmp_path: Path, journal: list[str]) -> None:
    with pytest.raises(Broken, match="a broke"):
        make_rounds(tmp_path, journal, breaks="a").run()
    assert journal == ["a starts", "a ends"]


def test_measurements_are_kept_if_the_machine_becomes_busy(tmp_path: Path, journal: list[str]) -> None:
    rounds = make_rounds(tmp_path, journal)
    loads = iter([Load(0.0, ())])

    def quiet() -> Load:
        for load in loads:
            return load
        raise Busy("others compute")

    rounds.quiet = quiet
    with pytest.raises(Busy):
        rounds.run()
    assert [run.contender for run in rounds.runs()] == ["a"]


def test_tables_show_the_figures_computed_by_hand(tmp_path: Path, journal: list[str]) -> None:
    rounds = make_rounds(tmp_path, journal, shapes=(SHAPE, ALONE), token=lambda index: 7)
    rounds.run()
    ratios, throughput, shape, alone, resources, shares, settings = report.tables(results_of(rounds))
    assert ratios.rows == (("over b", "2.00 (2.00 to 2.00)", "2.00 (2.00 to 2.00)"),)
    assert throughput.rows[1] == ("b", "2.00 (2.00 to 2.00)", "2.00 (2.00 to 2.00)")
    # The first token comes after half of the response's time, the other three in the second half.
    assert shape.rows[1][3] == "333 (333 to 333)"
    assert alone.rows[0][0] == "a"
    assert [row[3] for row in resources.rows] == ["12 of 12", "0 of 12"]
    # 3 requests of 8 + 4 - 1 rows and 4 heads, 2 * (33 + 1.2) million operations in 3 s, at 100 GFLOP/s.
    assert shares.rows[0][1] == "0.0 %"
    # 4 tokens/s, 1.1 million weights of 4 bytes, at 20 GB/s.
    assert shares.rows[0][2] == "0.0 %, read 0.1 %"
    assert settings.rows[0][1:5] == ("fp32", "4.00", "fp32", "in process")


def test_shares_use_the_limits_measured_around_an_engine(tmp_path: Path, journal: list[str]) -> None:
    rounds = make_rounds(tmp_path, journal, shapes=(ALONE,))
    bandwidths = iter([20.0, 60.0, 40.0, 10.0])
    rounds.measure_limits = lambda: Limits(2, 100.0, None, next(bandwidths))
    rounds.run()
    assert rounds.limits is not None
    assert rounds.limits.read_gbs == 60.0
    # `a` is measured in the first and the last life, `b` in the second; it is half as fast.
    shares = [run.read_share for run in rounds.runs()]
    assert [share / shares[0] for share in shares] == pytest.approx([1.0, 0.4, 0.4, 1.6])


def test_notes_name_missing_peers_and_json_has_no_nan(tmp_path: Path, journal: list[str]) -> None:
    rounds = make_rounds(tmp_path, journal, breaks="b")
    rounds.measure_limits = lambda: None
    rounds.run()
    results = results_of(rounds)
    ratios, *_ = report.tables(results)
    assert ratios.rows == (("over b", "-"),)
    assert "b could not be measured: b broke" in report.notes(results)
    write_json(results, tmp_path / "made" / "results.json")
    data = json.loads((tmp_path / "made" / "results.json").read_text())
    assert data["limits"] is None
    assert data["runs"][0]["arithmetic_share"] is None
    assert data["runs"][0]["figures"]["output_tokens"] == 12
