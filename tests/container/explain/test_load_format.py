"""`option.load_format=dummy`: `resolve` and `check` for a model without weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from container.explain.check import check
from container.explain.resolve import CannotServe, Resolved, resolve
from container.explain.target import this_machine
from container.machine import Machine
from engines.config import MpiEngineConfig
from lmi_server.config import EngineOptions, LmiConfig, ModelSource
from tests.container.explain.questions import CPU_MACHINE as CPU
from tests.container.explain.questions import GIB
from tests.support.paths import REPO_ROOT

GPUS = dataclasses.replace(CPU, gpu_count=2, gpu_names=("NVIDIA H200",) * 2)
EXAMPLE = REPO_ROOT / "properties_examples" / "llama-dummy"


def resolve_example(machine: Machine, load_format: str = "dummy", **options: Any) -> Resolved:
    config = LmiConfig(source=ModelSource(load_format=load_format), options=EngineOptions(**options))
    return resolve(config, EXAMPLE, machine)


def test_a_config_is_enough_and_the_engine_gets_the_load_format() -> None:
    resolved = resolve_example(CPU)
    assert resolved.config.model.load_format == "dummy"
    assert isinstance(resolved.config, MpiEngineConfig)
    assert MpiEngineConfig.from_json(resolved.config.to_json()) == resolved.config
    with pytest.raises(CannotServe, match=r"has no \.safetensors file"):
        resolve_example(CPU, "auto")


def test_a_note_gives_the_memory_of_random_weights() -> None:
    # 8 layers of 512x1024 + 512x512 + 3 * 512x1408 parameters, two tables of 32000x512.
    num_parameters = 8 * (512 * 1024 + 512 * 512 + 3 * 512 * 1408) + 2 * 32000 * 512

    def note(machine: Machine, **options: Any) -> str:
        (found,) = (one for one in resolve_example(machine, **options).notes if "load_format" in one)
        return found

    assert note(GPUS, tensor_parallel_degree=1) == (
        "option.load_format=dummy: the weights are random, so responses are meaningless; they take"
        f" {num_parameters * 2 / GIB:.3g} GiB in memory"
    )
    assert note(GPUS).endswith(f"they take {num_parameters / GIB:.3g} GiB on each of 2 GPUs")
    assert note(GPUS, dtype="fp32").endswith(f"{num_parameters * 2 / GIB:.3g} GiB on each of 2 GPUs")
    assert "on each of 2 ranks" in note(CPU, tensor_parallel_degree=2)


def test_random_weights_that_do_not_fit_in_memory_are_refused() -> None:
    small = Machine(cpu_count=2, memory_available_bytes=20 << 20)
    with pytest.raises(CannotServe, match=r"the weights take 0\.2 GiB in memory, but only 0\.0 GiB are free"):
        resolve_example(small, kv_cache_gb=0.01)


def test_check_reports_random_weights_and_a_byte_level_tokenizer() -> None:
    text = check(EXAMPLE, {}, this_machine(CPU)).render()
    assert text.splitlines()[-1] == "can serve here: yes"
    assert "the weights are random, so responses are meaningless" in text
    assert "has no tokenizer; using a byte-level tokenizer" in text
