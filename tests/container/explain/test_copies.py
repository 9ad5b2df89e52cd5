"""How many copies there are, and what each has of the machine."""

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


def test_one_copy_is_served_by_default_and_has_the_whole_machine(model: Path) -> None:
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
def test_as_many_copies_as_fit_on_the_gpus(
    model: Path, engine: str, degree: int, options: dict[str, Any], copies: int
) -> None:
    resolved = resolve(config(engine, tensor_parallel_degree=degree, **options), model, EIGHT_GPUS)
    assert resolved.copies == copies
    assert resolved.config.parallel.tp_size == degree
    idle = [note for note in resolved.notes if "stay idle" in note]
    assert bool(idle) is (copies * degree < 8)
    if idle:
        assert f"on the first {copies * degree} of 8 GPUs" in idle[0]


def test_the_largest_degree_is_that_of_a_copys_share(model: Path) -> None:
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


def test_workers_above_the_least_number_are_not_started_on_a_cpu(model: Path) -> None:
    resolved = resolve(config(max_workers=3), model, CPU)
    assert resolved.copies == 1
    assert any("copies are not added under load; minWorkers sets" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("machine", "options", "words"),
    [
        (GPUS, {"data_parallel_size": 3, "tensor_parallel_degree": 2}, "need 6 GPUs; this machine has 4"),
        (GPUS, {"data_parallel_size": 5}, "need 5 GPUs; this machine has 4"),
        (GPUS, {"min_workers": 3, "tensor_parallel_degree": 2}, "allowed: at most 2"),
        (CPU, {"data_parallel_size": 17}, "this machine's 8 core(s) can run at most 16; allowed: at most 16"),
        (
            CPU,
            {"data_parallel_size": 2, "kv_cache_gb": 20},
            "2 copies do not fit on this machine; with its share",
        ),
    ],
)
def test_copies_that_do_not_fit_are_refused_before_the_model_is_read(
    machine: Any, options: dict[str, Any], words: str
) -> None:
    [reason] = obstacles(config(**options), machine)
    assert words in reason


def test_what_one_copy_cannot_have_either_is_said_of_one() -> None:
    [reason] = obstacles(config(data_parallel_size=2, tensor_parallel_degree=8), GPUS)
    assert reason == "option.tensor_parallel_degree=8 needs 8 GPUs; this machine has 4"


def test_the_weights_of_all_copies_must_fit(model: Path) -> None:
    small = dataclasses.replace(CPU, memory_available_bytes=int(1.5 * GIB))
    assert resolve(config(data_parallel_size=1), model, small).copies == 1
    with pytest.raises(
        CannotServe, match=r"4 copies do not fit on this machine; with its share, .* the weights take"
    ):
        resolve(config(data_parallel_size=4), model, small)


def test_a_model_that_cannot_be_served_at_all_is_no_matter_of_copies(tmp_path: Path) -> None:
    folder = make_model(tmp_path, architectures=["Unknown"])
    with pytest.raises(CannotServe) as caught:
        resolve(config(data_parallel_size=2), folder, CPU)
    assert "copies" not in str(caught.value)


def test_segments_of_all_copies_must_fit_into_shared_memory(model: Path) -> None:
    docker = dataclasses.replace(CPU, cpu_count=32, shared_memory_bytes=64 << 20)
    assert resolve(config(tensor_parallel_degree=3), model, docker).copies == 1
    [reason] = obstacles(config(tensor_parallel_degree=3, data_parallel_size=5), docker)
    assert "15 ranks need" in reason
