"""The number of copies of a model, and each copy's share of the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from container.explain.resolve import CannotServe, obstacles, resolve
from engines.config import MpiEngineConfig
from tests.container.explain.questions import CPU, GIB, GPUS, config, make_model

EIGHT_GPUS = dataclasses.replace(GPUS, gpu_count=8, gpu_names=("NVIDIA H200",) * 8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path)


def test_the_default_is_one_copy_with_the_whole_machine(model: Path) -> None:
    resolved = resolve(config(), model, CPU)
    assert resolved.copies == 1
    assert resolved.config.parallel.threads_per_rank == 8
    assert resolved.values["option.data_parallel_size"] == "1"
    assert not [note for note in resolved.notes if "cop" in note]
    assert resolve(config(), model, GPUS).copies == 1


@pytest.mark.parametrize("engine", ["MPI", "Python"])
@pytest.mark.parametrize(
    ("degree", "options", "copies"),
    [
        (2, {}, 4),
        (3, {}, 2),
        (8, {}, 1),
        (2, {"max_workers": 3}, 3),
        (2, {"min_workers": 2}, 4),
        (2, {"min_workers": 2, "max_workers": 2}, 2),
        (2, {"max_workers": 100}, 4),
        (2, {"data_parallel_size": 3}, 3),
        (1, {"data_parallel_size": 1}, 1),
    ],
)
def test_the_number_of_copies_on_gpus(
    model: Path, engine: str, degree: int, options: dict[str, Any], copies: int
) -> None:
    resolved = resolve(config(engine, tensor_parallel_degree=degree, **options), model, EIGHT_GPUS)
    assert resolved.copies == copies
    assert resolved.config.parallel.tp_size == degree
    idle = [note for note in resolved.notes if "stay idle" in note]
    assert bool(idle) is (copies * degree < 8)
    if idle:
        assert f"on the first {copies * degree} of 8 GPUs" in idle[0]


def test_degree_max_uses_the_gpus_of_one_copy(model: Path) -> None:
    resolved = resolve(config(data_parallel_size=4), model, EIGHT_GPUS)
    assert (resolved.copies, resolved.config.parallel.tp_size) == (4, 2)


@pytest.mark.parametrize("options", [{"min_workers": 4}, {"data_parallel_size": 4}])
@pytest.mark.parametrize("engine", ["MPI", "Python"])
def test_copies_on_a_cpu_share_its_cores_and_its_memory(
    model: Path, engine: str, options: dict[str, Any]
) -> None:
    resolved = resolve(
        config(engine, **options), model, dataclasses.replace(CPU, memory_available_bytes=8 * GIB)
    )
    assert resolved.copies == 4
    assert resolved.config.parallel.threads_per_rank == 2
    assert any("4 copies of the model, each with 2 core(s) and 2.0 GiB" in note for note in resolved.notes)
    if isinstance(resolved.config, MpiEngineConfig):
        assert resolved.config.cache.kv_cache_bytes == GIB // 2


def test_copies_of_several_ranks_share_the_cores(model: Path) -> None:
    resolved = resolve(config(data_parallel_size=2, tensor_parallel_degree=2), model, CPU)
    assert (resolved.copies, resolved.config.parallel.threads_per_rank) == (2, 2)


def test_max_workers_starts_no_further_copies_on_a_cpu(model: Path) -> None:
    resolved = resolve(config(max_workers=3), model, CPU)
    assert resolved.copies == 1
    assert any("copies are not added under load; minWorkers sets" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        (GPUS, {"data_parallel_size": 3, "tensor_parallel_degree": 2}, "need 6 GPUs; this machine has 4"),
        (GPUS, {"data_parallel_size": 5}, "need 5 GPUs; this machine has 4"),
        (GPUS, {"min_workers": 3, "tensor_parallel_degree": 2}, "allowed: at most 2"),
        (dataclasses.replace(GPUS, name="ml.g5.12xlarge"), {"min_workers": 5}, "; ml.g5.12xlarge has 4;"),
        (
            dataclasses.replace(CPU, name="1 x CPU"),
            {"min_workers": 17},
            "; the 8 core(s) of 1 x CPU can run at most 16;",
        ),
        (
            CPU,
            {"data_parallel_size": 17},
            "the 8 core(s) of this machine can run at most 16; allowed: at most 16",
        ),
        (
            CPU,
            {"data_parallel_size": 2, "kv_cache_gb": 20},
            "2 copies do not fit on this machine; with its share",
        ),
    ],
)
def test_copies_that_do_not_fit_are_refused_before_the_model_is_downloaded(
    machine: Any, options: dict[str, Any], message: str
) -> None:
    [reason] = obstacles(config(**options), machine)
    assert message in reason


def test_the_reason_is_that_of_one_copy_if_one_does_not_fit_either() -> None:
    [reason] = obstacles(config(data_parallel_size=2, tensor_parallel_degree=8), GPUS)
    assert reason == "option.tensor_parallel_degree=8 needs 8 GPUs; this machine has 4"


def test_the_weights_of_all_copies_must_fit_in_memory(model: Path) -> None:
    small = dataclasses.replace(CPU, memory_available_bytes=int(1.5 * GIB))
    assert resolve(config(data_parallel_size=1), model, small).copies == 1
    with pytest.raises(
        CannotServe, match=r"4 copies do not fit on this machine; with its share, .* the weights take"
    ):
        resolve(config(data_parallel_size=4), model, small)


def test_the_error_for_an_unsupported_model_does_not_mention_copies(tmp_path: Path) -> None:
    folder = make_model(tmp_path, architectures=["Unknown"])
    with pytest.raises(CannotServe) as caught:
        resolve(config(data_parallel_size=2), folder, CPU)
    assert "copies" not in str(caught.value)


def test_all_copies_must_fit_into_shared_memory(model: Path) -> None:
    docker = dataclasses.replace(CPU, cpu_count=32, shared_memory_bytes=64 << 20)
    assert resolve(config(tensor_parallel_degree=3), model, docker).copies == 1
    [reason] = obstacles(config(tensor_parallel_degree=3, data_parallel_size=5), docker)
    assert "15 ranks need" in reason
