"""Limits of the machine, and the shares of them that a run used."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from container.measure.bench.workload import BenchRequest
from tests.bench.limits import Limits, NoLimits, arithmetic_share, combined, compiled, read_share
from tests.bench.machine import instruction_sets
from tests.bench.made_up import FACTS
from tests.bench.model import Matrices, count

LIMITS = Limits(2, fp32_gflops=100.0, int8_gops=400.0, read_gbs=20.0)
SHAPES = {
    "model.embed_tokens.weight": (1000, 64),
    "model.layers.0.self_attn.q_proj.weight": (64, 64),
    "model.layers.0.mlp.down_proj.weight": (64, 100),
    "model.norm.weight": (64,),
}


def test_a_tied_head_has_the_weights_of_the_embedding() -> None:
    assert count(SHAPES) == Matrices(64 * 64 + 64 * 100, 64_000)
    assert count({**SHAPES, "lm_head.weight": (500, 64)}) == Matrices(64 * 64 + 64 * 100, 32_000)


def test_models_with_experts_or_unknown_names_have_no_count() -> None:
    assert count({**SHAPES, "model.layers.0.block.experts.0.w1.weight": (64, 64)}) is None
    assert count({"other.weight": (3, 4)}) is None


def test_arithmetic_share_counts_rows_of_layers_and_head() -> None:
    requests = [BenchRequest(0, "p", 32, 9), BenchRequest(1, "p", 32, 1)]
    matrices = Matrices(10_000_000, 1_000_000)
    # 40 + 32 rows through the layers, 10 through the head: 2 * (720 + 10) million in 0.1 s.
    assert arithmetic_share(matrices, requests, 0.1, FACTS, LIMITS) == pytest.approx(14.6 / 100)
    int8 = replace(FACTS, arithmetic="int8")
    assert arithmetic_share(matrices, requests, 0.1, int8, LIMITS) == pytest.approx(14.6 / 400)
    assert math.isnan(arithmetic_share(matrices, requests, 0.1, int8, replace(LIMITS, int8_gops=None)))


def test_one_stream_reads_all_weights_for_each_token() -> None:
    assert read_share(Matrices(90_000_000, 10_000_000), 25.0, FACTS, LIMITS) == pytest.approx(0.5)


def test_measurements_are_combined_rate_by_rate() -> None:
    other = Limits(2, 90.0, None, 25.0)
    assert combined([LIMITS, None, other], max) == Limits(2, 100.0, 400.0, 25.0)
    assert combined([other, LIMITS], mean) == Limits(2, 95.0, 400.0, 22.5)
    assert combined([None], max) is None


def test_the_program_compiles_once(tmp_path: Path) -> None:
    assert shutil.which("cc"), "the installation needs a compiler too"
    program = compiled(tmp_path)
    compiled_at = program.stat().st_mtime_ns
    assert compiled(tmp_path).stat().st_mtime_ns == compiled_at


def test_limits_require_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NoLimits, match="a C compiler is needed"):
        compiled(tmp_path)


def test_instruction_sets_are_those_of_the_first_processor() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f amx_int8\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert instruction_sets(text) == ["avx2", "fma", "avx512f", "amx_int8"]
    assert instruction_sets("Features\t: fp asimd asimddp") == ["asimd", "asimddp"]
    assert instruction_sets("") == []
