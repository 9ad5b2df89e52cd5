"""`lmi profile`: steps of a tiny model on all its ranks, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from container.cli import main
from container.machine import Machine
from container.measure import profile_command
from container.measure.output import Table
from container.run.processes import bound
from engines.config import MpiEngineConfig
from lmi_kernels.cpu import shared_team
from tests.container.explain.questions import KV_BYTES_PER_TOKEN, make_model
from tests.support.tiny_models import save_llama

_CAPACITY = 1024


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    model, file = make_model(tmp_path), tmp_path / "serving.properties"
    kv_cache_gb = _CAPACITY * KV_BYTES_PER_TOKEN / (1 << 30)
    file.write_text(f"engine=MPI\noption.model_id={model}\noption.kv_cache_gb={kv_cache_gb}\n")
    return file


@pytest.mark.parametrize(
    ("sequences", "context", "tokens"), [(5, 256, 1280), (64, 17, 2048), (2, 9000, 2048)]
)
def test_more_than_the_kv_cache_holds_is_refused(
    sequences: int, context: int, tokens: int, properties: Path
) -> None:
    arguments = [str(properties), f"--sequences={sequences}", f"--context={context}"]
    result = CliRunner().invoke(main, ["profile", *arguments])
    used = min(context, _CAPACITY)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: --sequences: {sequences} sequences of {used} tokens exceed the KV cache (got {tokens} tokens);"
        f" allowed: at most {_CAPACITY}; lower --sequences or --context, or set a larger option.kv_cache_gb"
    )


Shapes = list[tuple[int, int, int]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MpiEngineConfig, Shapes]]:
    """What was measured, on a machine with two cores: the configuration and the shapes of the steps."""
    found: list[tuple[MpiEngineConfig, Shapes]] = []

    def run(config: MpiEngineConfig, steps: Shapes, repeats: int) -> list[dict[str, Any]]:
        found.append((config, steps))
        return [
            {"parts": {"linear": number / 2}, "total": float(number)} for number, _ in enumerate(steps, 1)
        ]

    monkeypatch.setattr(profile_command, "_run", run)
    monkeypatch.setattr(
        profile_command, "detect", lambda environ: Machine(cpu_count=2, memory_available_bytes=8 << 30)
    )
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_kv_cache_holds_is_measured_with_all_cores(
    ranks: int, properties: Path, measured: list[tuple[MpiEngineConfig, Shapes]]
) -> None:
    with properties.open("a") as file:
        file.write(f"option.tensor_parallel_degree={ranks}\n")
    result = CliRunner().invoke(
        main, ["profile", str(properties), "--sequences=4", "--context=256"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    ((config, shapes),) = measured
    assert shapes == [(1, 1, 256), (4, 1, 256), (1, 256, 256)]
    assert (config.parallel.tp_size, config.parallel.threads_per_rank) == (ranks, 2 // ranks)


@pytest.mark.usefixtures("measured")
def test_the_columns_are_the_steps_in_their_order(properties: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Table] = []
    monkeypatch.setattr(profile_command, "publish", lambda found, *others: tables.extend(found))
    result = CliRunner().invoke(main, ["profile", str(properties), "--sequences=4"])
    assert result.exit_code == 0, result.output
    assert tables[0].header == ("part", "one sequence", "4 sequences", "chunk of 256")
    assert tables[0].rows == (("linear", "0.50", "1.00", "1.50"), ("whole step", "1.00", "2.00", "3.00"))


@pytest.mark.parametrize(
    ("engine", "num_gpus", "message"),
    [
        ("Python", 0, "engine=Python cannot be profiled; set engine=MPI"),
        ("MPI", 1, "this machine has a GPU; set CUDA_VISIBLE_DEVICES= to profile on the CPU"),
    ],
    ids=["engine=Python", "a GPU"],
)
def test_what_cannot_be_profiled_is_refused_with_a_remedy(
    engine: str, num_gpus: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(cpu_count=2, memory_available_bytes=8 << 30, gpu_count=num_gpus)
    monkeypatch.setattr(profile_command, "detect", lambda environ: machine)
    file = tmp_path / "serving.properties"
    file.write_text(f"engine={engine}\noption.model_id={make_model(tmp_path)}\n")
    result = CliRunner().invoke(main, ["profile", str(file)])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == f"Error: {message}"


def test_the_kernel_ends_the_engine_with_the_command(
    properties: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        steps = [json.dumps({"parts": {"linear": 1.0}, "total": 1.0})] * 3
        return subprocess.CompletedProcess(command, 0, "\n".join(steps))

    monkeypatch.setattr(subprocess, "run", run)
    machine = Machine(cpu_count=2, memory_available_bytes=8 << 30)
    monkeypatch.setattr(profile_command, "detect", lambda environ: machine)
    result = CliRunner().invoke(main, ["profile", str(properties), "--sequences=4"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (command,) = commands
    place = command.index("engines.mpi.runner.profile")
    assert command[: place - 3] == bound([])


@pytest.mark.mpi
@pytest.mark.parametrize("degree", [1, 2])
def test_steps_are_measured_on_all_ranks(degree: int, tmp_path: Path) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are not built")
    save_llama(tmp_path)
    file = tmp_path / "serving.properties"
    text = f"engine=MPI\noption.model_id={tmp_path}\noption.tensor_parallel_degree={degree}\noption.kv_cache_gb=0.01\n"
    file.write_text(text)
    result = tmp_path / "result.json"
    arguments = ["--sequences=3", "--context=20", "--repeats=3", f"--json={result}"]
    done = CliRunner().invoke(main, ["profile", str(file), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"{degree} rank(s)" in done.output
    steps = json.loads(result.read_text())["steps"]
    assert [step["shape"]["num_seqs"] for step in steps] == [1, 3, 1]
    for step in steps:
        parts = step["parts"]
        assert 0 < parts["linear"] < step["total"]
        assert (parts["all_reduce"] > 0) == (degree > 1)
