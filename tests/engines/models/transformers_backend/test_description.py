"""Descriptions of transformers models from config.json and weight headers, and unsupported models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from engines.models.config import UnsupportedModel
from engines.models.tensor_files import BadCheckpoint
from engines.models.transformers_backend.description import describe
from engines.models.transformers_backend.split import SplitPlan, TensorSplit, why_not_split
from engines.partition import Shard
from tests.engines.models.conftest import LoneRank
from tests.support.transformers_models import save_transformers_model, transformers_runner

OLMO2 = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_WINDOW = {"sliding_window": 8, "num_key_value_heads": 4}


def _write(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(OLMO2 | changes))
    return folder


def test_missing_fields_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = describe(_write(tmp_path))
    assert (config.num_kv_heads, config.head_dim, config.num_layers) == (4, 16, 3)
    assert not config.tie_word_embeddings
    assert config.kv_bytes_per_token("fp32", 1) == 4 * 2 * 3 * 64


def test_each_layer_has_its_own_window(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    changes = {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 8}
    config = describe(_write(tmp_path, layer_types=kinds, **changes))
    assert [spec.window for spec in config.attention] == [None, 8, None]


def test_tensors_of_another_checkpoint_are_not_counted(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    save_file({"model.a": torch.ones(2)}, folder / "model.safetensors")
    save_file({"model.b": torch.ones(3)}, folder / "model-00001-of-00002.safetensors")
    assert describe(folder).tensors == (("model.a", (2,)),)


def test_a_disabled_window_is_none(tmp_path: Path) -> None:
    changes = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
    config = describe(_write(tmp_path, use_sliding_window=False, **changes, **_WINDOW))
    assert {spec.window for spec in config.attention} == {None}


@pytest.mark.parametrize(
    ("kind", "name", "rule"),
    [
        ("cohere2", "Cohere2", {"sliding_window_pattern": 3}),
        ("exaone4", "Exaone4", {"sliding_window_pattern": 3}),
        ("afmoe", "Afmoe", {"global_attn_every_n_layers": 3}),
        ("afmoe", "Afmoe", {}),
        ("dots1", "Dots1", {"max_window_layers": 5}),
        ("dots1", "Dots1", {"max_window_layers": 0}),
        ("dots1", "Dots1", {"max_window_layers": 7}),
    ],
)
def test_windows_follow_other_fields_if_layer_types_are_missing(
    kind: str, name: str, rule: dict[str, int], tmp_path: Path
) -> None:
    changes = {"architectures": [f"{name}ForCausalLM"], "model_type": kind, "num_hidden_layers": 7}
    config = describe(_write(tmp_path, **rule, **changes, **_WINDOW))
    layer_types = AutoConfig.from_pretrained(tmp_path).layer_types
    assert [spec.window for spec in config.attention] == [
        8 if layer_type == "sliding_attention" else None for layer_type in layer_types
    ]


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 512),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 1024),
        ({"rope_scaling": _YARN}, 1024),
        ({"model_max_length": 4096}, 4096),
        ({"model_max_length": 100}, 512),
        ({"model_max_length": 10**30}, 512),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": _YARN}, 1024),
        ({"rope_parameters": {"full_attention": _YARN, "sliding_attention": {"rope_type": "default"}}}, 512),
    ],
)
def test_rope_scaling_extends_the_longest_sequence(
    changes: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    config = describe(_write(tmp_path, **changes))
    assert (config.longest_sequence, config.max_position_embeddings) == (longest, 512)
    assert not config.rotaries


@pytest.mark.parametrize(
    ("architecture", "model_type", "reason"),
    [
        ("Nothing", "olmo2", "no causal language model Nothing"),
        ("MambaForCausalLM", "mamba", "does not use .* attention interface"),
        ("BertLMHeadModel", "bert", "its code also implements cross-attention"),
        ("GPTBigCodeForCausalLM", "gpt_bigcode", "its code also implements cross-attention"),
        ("Gemma4ForCausalLM", "gemma4_text", "its layers share keys and values"),
        ("DeepseekV4ForCausalLM", "deepseek_v4", "its cache has a state of its own"),
        (
            "PhiForCausalLM",
            "phi-msft",
            "transformers does not implement PhiForCausalLM for model_type 'phi-msft'",
        ),
        ("Qwen3NextForCausalLM", "qwen3_next", "recurrent layers"),
        ("GptOssForCausalLM", "gpt_oss", "experts are not implemented like"),
        ("Llama4ForCausalLM", "llama4_text", "chunked attention"),
        (
            "Olmo2ForCausalLM",
            "bert",
            "transformers does not implement Olmo2ForCausalLM for model_type 'bert'",
        ),
        ("Olmo3ForCausalLM", "olmo3", "no field 'layer_types'"),
        ("ModernBertDecoderForCausalLM", "modernbert-decoder", "no field 'sliding_window'"),
    ],
)
def test_unsupported_architectures_are_refused_with_a_reason(
    tmp_path: Path, architecture: str, model_type: str, reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        describe(_write(tmp_path, architectures=[architecture], model_type=model_type))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "weights are quantized"),
        ({"layer_types": ["linear_attention"] * 3}, "layer types linear_attention"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "longrope"}},
            "rope type 'longrope'",
        ),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; required: an object"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_unsupported_fields_are_refused_with_a_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        describe(_write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("name", "degree"),
    [
        ("olmo2", 1),
        ("biogpt", 1),
        ("olmo2", 2),
        ("phi-1", 2),
        ("glm4", 2),
        ("glm4", 3),
        ("cohere", 3),
        ("qwen2_moe", 2),
        ("qwen2_moe", 3),
    ],
)
def test_weight_bytes_predicts_the_weights_of_rank_0(name: str, degree: int, tmp_path: Path) -> None:
    save_transformers_model(tmp_path, name)
    runner = transformers_runner(tmp_path, LoneRank(0, degree))
    assert describe(tmp_path).weight_bytes(4, degree) == runner.report.owned_bytes


def test_shapes_that_differ_from_config_json_are_reported_when_the_model_is_loaded(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "starcoder2")
    whole = describe(tmp_path).weight_bytes(4)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_key_value_heads": 2}))
    assert describe(tmp_path).weight_bytes(4, 2) < whole
    with pytest.raises(BadCheckpoint, match=r"k_proj.weight' has 24.* and .*v_proj.weight' has 24"):
        transformers_runner(tmp_path, LoneRank(0, 2))


def test_layers_of_multi_token_prediction_are_not_counted(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "glm4_moe")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    last = {name: each for name, each in tensors.items() if ".layers.1." in name}
    for further in ("layers.2", "mtp.layers.0", "mtp_block.0"):
        tensors |= {name.replace("layers.1", further): each.clone() for name, each in last.items()}
    tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, {"format": "pt"})
    assert describe(tmp_path).weight_bytes(4) == transformers_runner(tmp_path).report.owned_bytes


def test_an_untied_embedding_and_norms_are_not_int8(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    shapes = {"model.embed_tokens": (100, 64), "lm_head": (100, 64), "model.norm": (64,)}
    save_file(
        {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}, folder / "a.safetensors"
    )
    assert describe(folder).weight_bytes(2, int8=True) == 100 * 64 * 2 + 100 * (64 + 12) + 64 * 2
    _write(tmp_path, tie_word_embeddings=True)
    assert describe(folder).weight_bytes(2, int8=True) == 2 * 100 * (64 + 12) + 64 * 2


def test_routers_are_not_int8(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "afmoe")
    config = describe(tmp_path)
    others = tuple(each for each in config.tensors if not each[0].endswith("router.gate.weight"))
    assert len(others) == len(config.tensors) - 1
    without = replace(config, tensors=others)
    assert config.weight_bytes(2, int8=True) - without.weight_bytes(2, int8=True) == 2 * 4 * 48


def test_linear_layers_are_split_by_the_plan() -> None:
    plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_up_proj": "colwise_gather_output",
        "layers.*.mlp.down_proj": "rowwise_split_input",
    }
    assert why_not_split(plan) == ""
    rank_1 = SplitPlan(plan, num_heads=6, num_kv_heads=3, head_dim=4, ranks=2, rank=1)
    assert rank_1.of("model.layers.11.self_attn.q_proj", (24, 7)) == TensorSplit(rows=(Shard(16, 24),))
    assert rank_1.of("model.layers.0.self_attn.k_proj", (12, 7)) == TensorSplit(rows=(Shard(8, 12),))
    assert rank_1.of("model.layers.0.self_attn.o_proj", (7, 24)) == TensorSplit(columns=Shard(16, 24))
    halves = rank_1.of("model.layers.0.mlp.gate_up_proj", (10, 7))
    assert halves == TensorSplit(rows=(Shard(3, 5), Shard(8, 10)))
    assert rank_1.of("model.layers.0.mlp.down_proj", (7, 5)) == TensorSplit(columns=Shard(3, 5))
    assert rank_1.of("model.layers.0.mlp.router", (4, 7)) == TensorSplit()
    with pytest.raises(ValueError, match="not a multiple of the head size"):
        rank_1.of("model.layers.0.self_attn.q_proj", (25, 7))


def test_norms_over_all_heads_are_split_with_the_heads(tmp_path: Path) -> None:
    config = describe(_write(tmp_path))
    assert config.one_rank_only == ""
    split = config.split_plan(2, 1)
    assert split.of("model.layers.1.self_attn.k_norm", (64, 1)) == TensorSplit(rows=(Shard(32, 64),))
    assert split.of("model.layers.1.self_attn.o_proj", (64, 64)) == TensorSplit(columns=Shard(32, 64))
    assert split.of("model.layers.1.post_attention_layernorm", (64, 1)) == TensorSplit()


def test_a_plan_that_does_not_split_attention_allows_one_rank_only() -> None:
    reason = why_not_split({"layers.*.self_attn.q_proj": "colwise_gather_output"})
    assert "self_attn.q_proj as colwise_gather_output" in reason
    assert "no tensor-parallel plan" in why_not_split(None)
    assert "latent" in why_not_split({"layers.*.self_attn.kv_b_proj": "colwise"})
    assert "does not split its attention" in why_not_split({"layers.*.mlp.gate_proj": "colwise"})
    for name in ("attention.query_key_value", "self_attn.qkv_proj"):
        assert f"{name} as colwise" in why_not_split({f"layers.*.{name}": "colwise"})
