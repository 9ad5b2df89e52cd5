"""Predicted memory of models, and measured memory of processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.machine import Machine
from container.multi_model import memory
from container.multi_model.errors import BadModel
from container.multi_model.memory import MemoryAccount, Room, predict_need, resident_bytes
from container.multi_model.served_model import MemoryNeed
from tests.support.paths import REPO_ROOT

CPU = Machine(cpu_count=2, memory_available_bytes=16 << 30, cpu_kernels="avx2")
DUMMY = REPO_ROOT / "properties_examples" / "llama-dummy"


def write_dummy_model(folder: Path, *lines: str) -> Path:
    """Write a model with dummy weights."""
    (folder / "config.json").write_text((DUMMY / "config.json").read_text())
    text = "\n".join(("engine=MPI", "option.load_format=dummy", *lines))
    (folder / "serving.properties").write_text(text)
    return folder


def need_of(folder: Path, machine: Machine = CPU) -> MemoryNeed:
    return predict_need(folder, {}, machine, lenient=False, allow_remote_code=False)


def test_weights_activations_and_cache_are_predicted(tmp_path: Path) -> None:
    small = need_of(write_dummy_model(tmp_path, "option.kv_cache_gb=0.5"))
    assert small.kv_cache_gb == "0.5"
    large = need_of(write_dummy_model(tmp_path, "option.kv_cache_gb=1.5"))
    assert large.host - small.host == pytest.approx(1 << 30, rel=0.01)
    assert small.gpu == 0


def test_an_unset_kv_cache_size_is_derived_from_free_memory(tmp_path: Path) -> None:
    folder = write_dummy_model(tmp_path)
    much, little = need_of(folder), need_of(folder, replace(CPU, memory_available_bytes=2 << 30))
    assert (much.kv_cache_gb, little.kv_cache_gb) == ("4", "0.5")
    assert much.host - little.host == pytest.approx(3.5 * (1 << 30), rel=0.01)


def test_required_memory_overrides_the_prediction(tmp_path: Path) -> None:
    assert need_of(write_dummy_model(tmp_path, "required_memory_mb=123")).host == 123 << 20


def test_with_gpus_the_weights_take_memory_of_each_gpu_instead_of_main_memory(tmp_path: Path) -> None:
    machine = replace(CPU, gpu_count=1)
    before = need_of(write_dummy_model(tmp_path), machine)
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 20))
    after = need_of(tmp_path, machine)
    assert after.gpu - before.gpu == pytest.approx(1.2 * (1 << 20), abs=2)
    assert before.gpu > memory.CONTEXT_BYTES
    assert after.host == before.host
    assert need_of(write_dummy_model(tmp_path, "gpu.required_memory_mb=700"), machine).gpu == 700 << 20


def test_each_copy_needs_its_own_memory(tmp_path: Path) -> None:
    machine = replace(CPU, cpu_count=4)
    one = need_of(write_dummy_model(tmp_path, "option.kv_cache_gb=0.5"), machine)
    two = need_of(
        write_dummy_model(tmp_path, "option.kv_cache_gb=0.5", "option.data_parallel_size=2"), machine
    )
    assert two.host == pytest.approx(2 * one.host, rel=0.01)


def test_the_files_of_a_handler_count_with_their_size(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return None\n")
    (tmp_path / "serving.properties").write_text("engine=Python")
    before = need_of(tmp_path).host
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 20))
    assert need_of(tmp_path).host - before == pytest.approx(1.2 * (1 << 20), abs=2)


@pytest.mark.parametrize("line", ["option.dtype=fp17", "option.data_parallel_size=64"])
def test_a_bad_configuration_is_rejected_with_the_reason(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=line.partition("=")[0]):
        need_of(write_dummy_model(tmp_path, line))


def test_of_many_problems_some_are_listed(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="and 45 more problems") as caught:
        need_of(write_dummy_model(tmp_path, *(f"option.unknown{i}=1" for i in range(50))))
    assert str(caught.value).count("unknown key") == 5


def test_a_model_that_is_too_large_needs_more_than_the_available_memory(tmp_path: Path) -> None:
    small = replace(CPU, memory_available_bytes=100 << 20)
    for line in ("option.kv_cache_gb=0.5", "required_memory_mb=1"):
        assert need_of(write_dummy_model(tmp_path, line), small).host > small.memory_available_bytes


def test_memory_includes_descendant_processes() -> None:
    program = (
        "import subprocess, sys; x = b'x' * (40 << 20); subprocess.run([sys.executable, '-c', sys.argv[1]])"
    )
    inner = "x = b'x' * (40 << 20); print('up', flush=True); import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, inner], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            assert resident_bytes(process.pid) > 80 << 20
        finally:
            for pid in memory.process_tree(process.pid):
                subprocess.run(["kill", "-9", str(pid)], check=True)


@pytest.mark.parametrize(
    ("limit", "beside", "without"), [(None, 35, 75), (60, 20, 60), (200, 35, 75), (30, 0, 30)]
)
def test_room_beside_and_without_another_model(limit: int | None, beside: int, without: int) -> None:
    """50 bytes are free, of which 5 are reserved. The model takes 30 and is predicted to need 40."""
    machine = replace(CPU, memory_available_bytes=50)
    account = MemoryAccount({}, limit, 5, lambda pid: 30, lambda environ: machine)
    user: Any = SimpleNamespace(pid=1, need=MemoryNeed(40), is_ready=True)
    assert account.room([user]).machine.memory_available_bytes == beside
    assert account.room_without([user]).machine.memory_available_bytes == without


def test_free_gpu_memory_is_that_of_the_fullest_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\necho "$@" > "$0.arguments"\n'
        'case "$1" in *free) printf "900\\n700\\n";; *) printf "2000\\n3000\\n";; esac\n'
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(memory, "_SMI_SECONDS", 200.0)
    machine = replace(CPU, gpu_count=2)
    account = MemoryAccount({"CUDA_VISIBLE_DEVICES": "0,2"}, None, 0, lambda pid: 0, lambda environ: machine)
    loading: Any = SimpleNamespace(pid=1, need=MemoryNeed(0, 300 << 20), is_ready=False)
    assert account.room_without([loading]).gpu == 2000 << 20
    assert account.room([loading]).gpu == 400 << 20
    assert "-i 0,2" in (tmp_path / "nvidia-smi.arguments").read_text()
    loading.is_ready = True
    room = account.room([loading])
    assert room.gpu == 700 << 20
    assert room.holds(MemoryNeed(1, 700 << 20))
    assert not room.holds(MemoryNeed(1, (700 << 20) + 1))
    assert not Room(machine).holds(MemoryNeed(0, 1))


def test_files_that_may_not_be_read_are_the_models_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/model/config.json")

    monkeypatch.setattr(memory, "check", refuse)
    with pytest.raises(BadModel, match=r"cannot be read: .*/model/config\.json"):
        need_of(write_dummy_model(tmp_path))
