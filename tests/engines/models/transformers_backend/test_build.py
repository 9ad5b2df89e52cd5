"""Several ranks building their modules in one process."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import init_empty_weights
from safetensors.torch import load_file, save_file
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.olmoe.modeling_olmoe import OlmoeRMSNorm

import lmi_kernels
from engines.models.parts import Parts
from engines.models.transformers_backend.build import _Builder, build
from engines.models.transformers_backend.description import describe
from engines.models.transformers_backend.patterns import rounds_before_weight
from engines.models.transformers_backend.split_norm import SplitNorm
from engines.models.weights import WeightReader
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import Storage
from tests.support.seeds import fresh_generator
from tests.support.thread_ranks import run_ranks
from tests.support.transformers_models import differences, save_transformers_model, transformers_runner


@pytest.mark.parametrize("kind", [Olmo2RMSNorm, OlmoeRMSNorm])
def test_a_norm_over_all_heads_rounds_as_the_original(kind: type[torch.nn.Module]) -> None:
    norm = kind(96, 1e-6).to(torch.bfloat16)
    weight = torch.nn.init.uniform_(norm.get_parameter("weight"), 0.5, 2.0)
    x = torch.randn(64, 96).to(torch.bfloat16)
    split = SplitNorm(weight, 1e-6, 96, 0, Communicator(), rounds_before_weight(norm))
    assert torch.equal(split(x), norm(x))


def test_ranks_read_their_weights_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_transformers_model(tmp_path, "starcoder2")
    barrier = threading.Barrier(2, timeout=200)
    fill = _Builder.fill

    def fill_after_barrier(builder: _Builder) -> None:
        barrier.wait()
        fill(builder)

    monkeypatch.setattr(_Builder, "fill", fill_after_barrier)
    assert len(run_ranks(2, lambda comm: transformers_runner(tmp_path, comm))) == 2


def test_weights_are_filled_while_another_module_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_transformers_model(tmp_path, "starcoder2")
    fill = _Builder.fill

    def fill_during_build(builder: _Builder) -> None:
        with init_empty_weights():
            fill(builder)

    monkeypatch.setattr(_Builder, "fill", fill_during_build)
    worst, same = differences(tmp_path)
    assert worst < 1e-4
    assert same


def test_tensors_that_transformers_keeps_in_fp32_are_not_rounded(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "glm4_moe")
    file, name = tmp_path / "model.safetensors", "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors, bias = load_file(file), 7.5 + 0.01 * torch.arange(4)
    assert tensors[name].shape == bias.shape
    save_file(tensors | {name: bias}, file, {"format": "pt"})
    weights = WeightReader(tmp_path, torch.bfloat16, torch.bfloat16, torch.device("cpu"))
    model = build(Parts(describe(tmp_path), weights, Communicator(), Stopwatch(time.perf_counter)))
    found = model._base.get_submodule("layers.1.mlp.gate").e_score_correction_bias
    assert isinstance(found, torch.Tensor)
    assert found.dtype is torch.float32
    assert torch.equal(found, bias)


@pytest.mark.usefixtures("native_kernels")
def test_routers_are_not_quantized(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "afmoe")
    pack = partial(lmi_kernels.pack, storage=Storage.INT8)
    weights = WeightReader(tmp_path, torch.float32, None, torch.device("cpu"), pack)
    model = build(Parts(describe(tmp_path), weights, Communicator(), Stopwatch(time.perf_counter)))
    stored, x = load_file(tmp_path / "model.safetensors"), torch.randn(5, 48, generator=fresh_generator())
    errors = [
        float((model._base.get_submodule(name)(x) - x @ stored[f"model.{name}.weight"].T).abs().max())
        for name in ("layers.1.mlp.router.gate", "layers.1.self_attn.gate_proj")
    ]
    assert errors[0] < 1e-5 < 1e-3 < errors[1]
