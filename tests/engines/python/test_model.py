"""Placement of a model's layers, and its precision."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import dynamic_module_utils

from engines.config import ParallelConfig
from engines.python import model as loading
from engines.python.model import describe, load_model, placement
from tests.support.dynamic_engine import make_dynamic_config
from tests.support.tiny_architectures import VOCAB_SIZE, make_model

_GIB = 1 << 30


def test_one_gpu_gets_the_whole_model_and_more_gpus_balance_its_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = [80 * _GIB, 40 * _GIB]  # reading the memory of a third GPU would use it
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free[gpu], 80 * _GIB))
    assert placement(1) == {"device_map": {"": 0}}
    placed = placement(2)
    assert placed["device_map"] == "balanced"
    assert placed["max_memory"] == {0: 72 * _GIB, 1: 36 * _GIB}


def test_a_model_whose_layers_are_all_on_one_gpu_is_accepted_and_layers_elsewhere_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model("llama").save_pretrained(tmp_path)
    config = replace(make_dynamic_config(tmp_path), parallel=ParallelConfig(1, "cuda", 1))
    monkeypatch.setattr(loading, "placement", lambda *_: {"device_map": {"": "cpu"}})
    with pytest.raises(ValueError, match=r"does not fit on the GPUs"):
        load_model(config)
    with FakeTensorMode():
        on_gpu = torch.empty(1, device="cuda")  # without a GPU
    monkeypatch.setattr(torch.nn.Module, "parameters", lambda _: iter([on_gpu]))
    load_model(config)


@pytest.mark.parametrize(("architecture", "encoder_decoder"), [("gpt2", False), ("t5", True)])
def test_a_model_is_loaded_by_its_own_class(tmp_path: Path, architecture: str, encoder_decoder: bool) -> None:
    saved = make_model(architecture)
    saved.save_pretrained(tmp_path)
    model = load_model(make_dynamic_config(tmp_path))
    assert type(model.module) is type(saved)
    assert (model.is_encoder_decoder, model.num_embeddings, model.pad_token_id) == (
        encoder_decoder,
        VOCAB_SIZE,
        3,
    )
    assert model.takes_mask
    for (name, loaded), (_, original) in zip(
        model.module.named_parameters(), saved.named_parameters(), strict=True
    ):
        assert torch.equal(loaded, original), name


@pytest.mark.parametrize(
    ("configured", "pad"), [(-1, 0), (None, 0), (VOCAB_SIZE, 0), (VOCAB_SIZE - 1, VOCAB_SIZE - 1)]
)
def test_a_pad_token_outside_the_embedding_table_is_replaced(configured: int | None, pad: int) -> None:
    model = make_model("llama")
    model.generation_config.pad_token_id = configured
    assert describe(model).pad_token_id == model.generation_config.pad_token_id == pad


def test_on_a_cpu_weights_are_rounded_to_dtype_and_computed_in_fp32(tmp_path: Path) -> None:
    saved = make_model("llama")
    saved.save_pretrained(tmp_path)
    loaded = load_model(make_dynamic_config(tmp_path, dtype="bf16")).module
    for (name, parameter), (_, original) in zip(
        loaded.named_parameters(), saved.named_parameters(), strict=True
    ):
        assert parameter.dtype is torch.float32
        assert torch.equal(parameter, original.to(torch.bfloat16).float()), name
    assert torch.equal(loaded.model.rotary_emb.inv_freq, saved.model.rotary_emb.inv_freq)


def test_tied_weights_stay_tied_when_rounded(tmp_path: Path) -> None:
    saved = make_model("llama")
    saved.config.tie_word_embeddings = True
    saved.tie_weights()
    saved.save_pretrained(tmp_path)
    loaded = load_model(make_dynamic_config(tmp_path, dtype="fp16")).module
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_a_checkpoint_without_one_of_the_tensors_is_refused(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"the checkpoint lacks 1 of the model's tensors, such as {name}"):
        load_model(make_dynamic_config(tmp_path))


def test_a_quantization_that_transformers_would_ignore_is_refused(tmp_path: Path) -> None:
    model = make_model("llama")
    model.config.quantization_config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    model.config.save_pretrained(tmp_path)
    save_file(model.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"does not support the checkpoint's quantization \(modelopt\)"):
        load_model(make_dynamic_config(tmp_path))


def test_a_model_with_layers_outside_the_gpus_is_refused_with_the_options_that_help() -> None:
    remedy = "raise option.tensor_parallel_degree, or set option.dtype=fp16 or bf16$"
    with pytest.raises(ValueError, match=remedy):
        loading._require_gpus_only(torch.nn.Linear(1, 1))


def test_only_safetensors_weights_are_read(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    with pytest.raises(OSError, match=r"safetensors"):
        load_model(make_dynamic_config(tmp_path))


def test_code_of_the_model_runs_only_with_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose config.json names classes in its own folder, as those on the Hub with `auto_map`."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, mark = tmp_path / "model", tmp_path / "ran"
    make_model("llama").save_pretrained(folder)
    config_json = folder / "config.json"
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    changes = {"model_type": "own-llama", "architectures": ["OwnModel"], "auto_map": classes}
    config_json.write_text(json.dumps(json.loads(config_json.read_text()) | changes))
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(mark)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own-llama'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    config = make_dynamic_config(folder)
    with pytest.raises(ValueError, match="custom code"):
        load_model(config)
    assert not mark.exists()
    model = load_model(replace(config, trust_remote_code=True))
    assert type(model.module).__name__ == "OwnModel"
    assert mark.exists()
