"""GGUF models in the model runner, compared with transformers on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from container.models.gguf_describe import describe
from engines.models import gguf_index
from engines.models.architectures import read_config
from engines.models.gguf_files import GgufFiles
from engines.models.gguf_index import read_index
from engines.models.tensor_files import BadCheckpoint
from tests.engines.models.conftest import LLAMA3_ROPE
from tests.support.gguf_models import SHAPE, WIDE, copy_gguf, save_gguf
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.seeds import generator_from, integers
from tests.support.thread_ranks import run_ranks
from tests.support.tiny_models import VOCAB_SIZE, load_oracle, make_runner, oracle_logits

TABLES = [[9, 2, 31, 4, 17, 0, 22, 30, 5, 40, 12], [63, 7, 50, 8, 33, 1, 44, 20, 6, 3, 11]]
CHUNKS = [[30, 1, 1], [5, 2]]
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
CASES: dict[str, tuple[str, Kind, dict[str, Any]]] = {
    "llama-f32": ("llama", Kind.F32, {"tie_word_embeddings": False}),
    "llama-bias": ("llama", Kind.F32, {"attention_bias": True, "mlp_bias": True}),
    "llama-f16": ("llama", Kind.F16, {}),
    "llama-bf16": ("llama", Kind.BF16, {}),
    "llama-q8_0": ("llama", Kind.Q8_0, {}),
    "llama-q4_0": ("llama", Kind.Q4_0, {}),
    "llama-q4_k": ("llama", Kind.Q4_K, WIDE),
    "mixtral-q8_0": ("mixtral", Kind.Q8_0, {}),
    "llama-in-parts": ("llama", Kind.Q8_0, {"tensors_per_file": 5}),
    "qwen2-q8_0": ("qwen2", Kind.Q8_0, {}),
    "qwen3-q8_0": ("qwen3", Kind.Q8_0, {"tie_word_embeddings": False}),
    "qwen3-moe-f16": ("qwen3_moe", Kind.F16, {"moe_intermediate_size": 64, "norm_topk_prob": True}),
    "gemma-q8_0": ("gemma", Kind.Q8_0, {}),
    "gemma2-f16": ("gemma2", Kind.F16, {"query_pre_attn_scalar": 16}),
    "gemma3-q8_0": (
        "gemma3_text",
        Kind.Q8_0,
        {"num_hidden_layers": 6, "sliding_window_pattern": 6, "query_pre_attn_scalar": 16},
    ),
    "phi3-q4_0": ("phi3", Kind.Q4_0, {"rope_parameters": PARTIAL}),
}


def _logits(folder: Path, degree: int = 1, **settings: Any) -> dict[tuple[int, int], torch.Tensor]:
    plans = plans_in_chunks(_prompts(), TABLES, CHUNKS)
    if degree == 1:
        return run_plans(make_runner(folder, **settings), plans)
    return run_ranks(degree, lambda comm: run_plans(make_runner(folder, comm, **settings), plans))[0]


def _prompts() -> list[list[int]]:
    generator = generator_from(1)
    return [integers(generator, 0, VOCAB_SIZE, count) for count in (33, 9)]


def _assert_logits_match(logits_by_position: dict[tuple[int, int], torch.Tensor], oracle: Any) -> None:
    expected = [oracle_logits(oracle, prompt) for prompt in _prompts()]
    assert {(0, 32), (1, 8)} <= set(logits_by_position)
    for (i, position), logits in logits_by_position.items():
        scale = max(1.0, float(expected[i][position].abs().max()))
        assert float((logits - expected[i][position]).abs().max()) < 1e-4 * scale


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_match_the_dequantized_weights(case: tuple[str, Kind, dict[str, Any]], tmp_path: Path) -> None:
    name, kind, changes = case
    _, described, checkpoint = save_gguf(tmp_path, name, kind, **changes)
    _assert_logits_match(_logits(described), load_oracle(checkpoint, "fp32"))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_logits_match_transformers_on_the_same_file(name: str, tmp_path: Path) -> None:
    file, described, _ = save_gguf(tmp_path, name, Kind.Q8_0)
    oracle = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    _assert_logits_match(_logits(described), oracle.eval())


@pytest.mark.parametrize(
    ("name", "kind", "degree"), [("llama", Kind.Q4_0, 2), ("mixtral", Kind.Q4_0, 2), ("phi3", Kind.F16, 3)]
)
def test_tensor_parallel_ranks_read_one_file(name: str, kind: Kind, degree: int, tmp_path: Path) -> None:
    _, described, checkpoint = save_gguf(tmp_path, name, kind)
    _assert_logits_match(_logits(described, degree), load_oracle(checkpoint, "fp32"))


def test_a_missing_expert_is_reported(tmp_path: Path) -> None:
    _, described, _ = save_gguf(tmp_path, "mixtral", Kind.F16)
    index = read_index(described)
    assert index is not None
    files, name = GgufFiles(index), "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    assert files.shape(name.format(3)) == (96, 64)
    with pytest.raises(BadCheckpoint, match=r"model.gguf has no tensor .*experts.4.w1.weight"):
        files.shape(name.format(4))


def test_transformers_modules_can_load_gguf(tmp_path: Path) -> None:
    _, described, checkpoint = save_gguf(tmp_path, "qwen3", Kind.Q8_0)
    _assert_logits_match(_logits(described, impl="transformers"), load_oracle(checkpoint, "fp32"))


@pytest.mark.usefixtures("native_kernels")
def test_weights_are_converted_to_the_requested_dtype(tmp_path: Path) -> None:
    _, described, checkpoint = save_gguf(tmp_path, "llama", Kind.Q4_0)
    assert read_config(described).dtype == "float32"
    exact = oracle_logits(load_oracle(checkpoint, "fp32"), _prompts()[1])[8]
    for settings in ({"dtype": "bf16"}, {"quantize": "int8"}):
        rounded = _logits(described, **settings)[1, 8]
        assert not torch.equal(rounded, exact)
        torch.testing.assert_close(rounded, exact, rtol=0.2, atol=0.5)


def test_llama3_rope_scaling_is_read_from_a_tensor(tmp_path: Path) -> None:
    """`rope_freqs.weight` has divisors of the frequencies."""
    file, described, checkpoint = save_gguf(tmp_path, "llama", Kind.F32, rope_parameters=LLAMA3_ROPE)
    oracle = load_oracle(checkpoint, "fp32")
    plain = 1 / 500.0 ** (torch.arange(0, SHAPE["head_dim"], 2).float() / SHAPE["head_dim"])
    factors = plain / oracle.model.rotary_emb.inv_freq
    assert factors.max() > 2
    scaled = file.with_name("scaled.gguf")
    copy_gguf(file, scaled, {"rope_freqs.weight": factors.numpy()})
    describe(scaled, described)
    _assert_logits_match(_logits(described), oracle)


_FACTORS = {
    "llama": {
        "blk.0.attn_q": {"model.layers.0.self_attn.q_proj": 0.5},
        "blk.1.ffn_down": {"model.layers.1.mlp.down_proj": 0.25},
        "output": {"lm_head": 3.0},
    },
    "mixtral": {
        f"blk.1.{own}": {
            f"model.layers.1.block_sparse_moe.experts.{i}.{name}": factor
            for i, factor in enumerate((0.5, 1.0, 2.0, 0.25))
        }
        for own, name in {"ffn_up_exps": "w3", "ffn_down_exps": "w2"}.items()
    },
}
"""Factors of matrices by their names in the checkpoint, by names in GGUF."""


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_matrices_are_multiplied_by_their_factors(name: str, degree: int, tmp_path: Path) -> None:
    """Files in NVFP4 have a factor for each matrix, or one for each expert. `input_scale` only serves to quantize."""
    file, described, checkpoint = save_gguf(tmp_path, name, Kind.F32, tie_word_embeddings=False)
    weights = load_file(checkpoint / "model.safetensors")
    tensors = {"blk.0.attn_q.input_scale": np.array([9.0], np.float32)}
    for own, factors in _FACTORS[name].items():
        tensors[f"{own}.scale"] = np.array(list(factors.values()), np.float32)
        for matrix, factor in factors.items():
            weights[f"{matrix}.weight"] *= factor
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    copy_gguf(file, file.with_name("factors.gguf"), tensors)
    describe(file.with_name("factors.gguf"), described)
    _assert_logits_match(_logits(described, degree), load_oracle(checkpoint, "fp32"))


def test_tensors_that_the_model_does_not_use_are_refused(tmp_path: Path) -> None:
    file, described, checkpoint = save_gguf(tmp_path, "llama", Kind.F32)
    biased, bias = file.with_name("biased.gguf"), np.ones(SHAPE["hidden_size"], np.float32)
    copy_gguf(file, biased, {"v.blk.0.attn_q.bias": bias})
    describe(biased, described)
    _assert_logits_match(_logits(described), load_oracle(checkpoint, "fp32"))
    copy_gguf(file, biased, {"blk.0.attn_q.bias": bias})
    describe(biased, described)
    with pytest.raises(
        BadCheckpoint, match=r"biased.gguf has tensors .* supported \(got blk.0.attn_q.bias\)"
    ):
        make_runner(described)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": {}},
        {"sizes": {"../model.gguf": 1}, "file": "../model.gguf"},
        {"sizes": {"environ": 1}, "file": "environ"},
        {"tensors": None},
    ],
)
def test_an_index_of_other_files_is_ignored(change: dict[str, Any], tmp_path: Path) -> None:
    """The index could come from a model's author, and name any file of the machine."""
    _, described, _ = save_gguf(tmp_path, "llama", Kind.F16)
    path = described / gguf_index.NAME
    index = json.loads(path.read_text())
    for tensor in index["tensors"].values():
        tensor["file"] = change.get("file", tensor["file"])
    index |= {name: value for name, value in change.items() if name in index}
    path.write_text(json.dumps(index))
    assert read_index(described) is None
    with pytest.raises(BadCheckpoint, match=r"no \.safetensors file"):
        make_runner(described)


def test_a_changed_or_missing_file_is_refused(tmp_path: Path) -> None:
    file, described, _ = save_gguf(tmp_path, "llama", Kind.F16)
    index = read_index(described)
    assert index is not None
    assert index.problem == ""
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadCheckpoint, match=r"model.gguf has \d+ bytes, but had \d+"):
        make_runner(described)
    file.unlink()
    with pytest.raises(BadCheckpoint, match=r"model.gguf cannot be read: No such file"):
        make_runner(described)
