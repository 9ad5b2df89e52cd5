"""Architecture-specific fields of config.json, and the sizes of published models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from engines.models.architectures import ARCHITECTURES, read_config
from engines.models.config import (
    AttentionSpec,
    ExpertsConfig,
    LongRope,
    ModelConfig,
    RopeScaling,
    Rotary,
    UnsupportedModel,
)
from engines.models.transformers_backend.description import describe
from engines.partition import split_heads
from tests.engines.models.conftest import MISTRAL, MIXTRAL, write_and_read
from tests.support.published_models import PUBLISHED

FALCON_7B = PUBLISHED["falcon-7b"]
FALCON_40B = PUBLISHED["falcon-40b"] | {"tie_word_embeddings": False}
LLAMA_3_8B = PUBLISHED["llama-3-8b"]
QWEN3_06B = PUBLISHED["qwen3-0.6b"]
BLOOM = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": 64, "vocab_size": 97}
MPT_7B: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "model_type": "mpt",
    "attn_config": {"alibi": True, "attn_impl": "torch", "qk_ln": False, "softmax_scale": None},
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "vocab_size": 50432,
}
_MINIMAL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "max_position_embeddings": 16384,
}
"""A config.json that relies on the defaults of transformers."""


def test_every_architecture_has_a_reader() -> None:
    assert all(callable(ARCHITECTURES[name]) for name in ARCHITECTURES)


@pytest.mark.parametrize(
    ("data", "gigabytes"),
    [
        (LLAMA_3_8B, 16.06),
        (FALCON_7B, 13.84),
        (FALCON_40B, 83.67),
        (FALCON_40B | {"tie_word_embeddings": True}, 82.6),
        (MIXTRAL, 93.40),
        (MISTRAL, 14.48),
        (QWEN3_06B, 1.192),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_weight_bytes_of_published_models_in_16_bits(
    data: dict[str, Any], gigabytes: float, tmp_path: Path
) -> None:
    assert write_and_read(tmp_path, data).weight_bytes(2) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


@pytest.mark.parametrize(
    ("data", "elements"), [(LLAMA_3_8B, 65536), (FALCON_40B, 61440), (MIXTRAL, 65536), (FALCON_7B, 4096)]
)
def test_the_kv_cache_of_published_models(data: dict[str, Any], elements: int, tmp_path: Path) -> None:
    assert write_and_read(tmp_path, data).kv_bytes_per_token("fp32", 1) == 4 * elements


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 9, 20])
def test_kv_bytes_of_all_ranks_match_their_kv_heads(ranks: int, tmp_path: Path) -> None:
    for data in (LLAMA_3_8B, FALCON_7B):
        config = write_and_read(tmp_path, data)
        heads = config.num_heads, config.num_kv_heads
        num_kv_heads = sum(split_heads(*heads, ranks, rank).kv_heads.size for rank in range(ranks))
        assert (
            config.kv_bytes_per_token("bf16", ranks) == 4 * config.num_layers * config.head_dim * num_kv_heads
        )


def test_falcon_7b(tmp_path: Path) -> None:
    config = write_and_read(tmp_path, FALCON_7B)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (71, 1, 64)
    assert (config.max_position_embeddings, config.norm.eps) == (2048, 1e-5)
    assert config.attention == (AttentionSpec(scale=0.125, rotary=Rotary(64, 10000.0)),) * config.num_layers
    assert config.tie_word_embeddings, "the default of transformers"
    # num_kv_heads is ignored. Without multi_query, each head has its own KV head.
    assert write_and_read(tmp_path, FALCON_7B | {"num_kv_heads": 71}).num_kv_heads == 1
    assert write_and_read(tmp_path, FALCON_7B | {"multi_query": False}).num_kv_heads == 71


@pytest.mark.parametrize(("num_norms", "expected"), [(None, 2), (2, 2), (1, 1)])
def test_falcon_40b(num_norms: int | None, expected: int, tmp_path: Path) -> None:
    config = write_and_read(tmp_path, FALCON_40B | {"num_ln_in_parallel_attn": num_norms, "bias": True})
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (128, 8, 64)
    assert config.parallel_block
    assert (config.names.mlp_norm is None) == (expected == 1)
    assert config.qkv_bias
    assert config.mlp_bias


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "mish"}, "activation is 'mish'; supported: gelu, "),
        ({"num_attention_heads": 70}, "hidden_size 4544 is not divisible by 70 attention heads"),
        ({"hidden_size": 71 * 5}, "head_dim is 5"),
        ({"new_decoder_architecture": True, "num_kv_heads": 3}, "71 attention heads .* by 3 KV heads"),
        (
            {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3},
            "num_ln_in_parallel_attn is 3; supported: 1, 2",
        ),
    ],
)
def test_unsupported_falcon_variants_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        write_and_read(tmp_path, FALCON_7B | changes)


@pytest.mark.parametrize("read", [read_config, describe])
def test_unreasonable_configs_are_refused_at_once(
    read: Callable[[Path], ModelConfig], tmp_path: Path
) -> None:
    for changes, message in (
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is too large; allowed: at most 4096"),
        ({"hidden_size": 10**9 * 32}, "hidden_size is too large"),
        ({"hidden_size": 2**30, "num_attention_heads": 2**30}, "num_attention_heads is too large; allowed"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B | changes))
        with pytest.raises(UnsupportedModel, match=message):
            read(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures":' + "[" * 100_000)
    with pytest.raises(UnsupportedModel):
        read(tmp_path)


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (
            LLAMA_3_8B,
            {"model_type": "mistral"},
            r"model_type: does not match the architecture LlamaForCausalLM \(got 'mistral'\); allowed: 'llama'",
        ),
        (
            LLAMA_3_8B,
            {"model_type": "ministral"},
            r"model_type: does not match the architecture LlamaForCausalLM \(got 'ministral'\); allowed: 'llama'",
        ),
        (LLAMA_3_8B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is set"),
        (
            QWEN3_06B,
            {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary",
        ),
        (BLOOM, {"slow_but_exact": True, "pretraining_tp": 4}, "slow_but_exact is true"),
        (
            MPT_7B,
            {"attn_config": {"alibi": True, "alibi_bias_max": 16}},
            "alibi_bias_max is set; supported: 8",
        ),
    ],
    ids=[
        "model type",
        "ministral",
        "partial rotary",
        "partial rotary scaling",
        "slow but exact",
        "largest ALiBi bias",
    ],
)
def test_what_transformers_computes_in_another_way_is_refused(
    data: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_and_read(tmp_path, data)
    with pytest.raises(UnsupportedModel, match=message):
        write_and_read(tmp_path, data | changes)


def test_gemma_3_caps_no_scores(tmp_path: Path) -> None:
    data = _MINIMAL | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    config = write_and_read(tmp_path, data | {"attn_logit_softcapping": 50.0})
    assert {spec.softcap for spec in config.attention} == {None}


def test_mixtral(tmp_path: Path) -> None:
    config = write_and_read(tmp_path, MIXTRAL | {"num_local_experts": 4, "num_experts_per_tok": 3})
    assert config.experts == ExpertsConfig(num_experts=4, top_k=3, intermediate_size=14336)
    assert write_and_read(tmp_path, MIXTRAL).experts == ExpertsConfig(8, 2, 14336)
    with pytest.raises(UnsupportedModel, match="num_experts_per_tok is 9; there are only 8 experts"):
        write_and_read(tmp_path, MIXTRAL | {"num_experts_per_tok": 9})


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("ministral", "Ministral"),
        ("mixtral", "Mixtral"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
        ("qwen3_moe", "Qwen3Moe"),
        ("gemma", "Gemma"),
        ("gemma2", "Gemma2"),
        ("gemma3_text", "Gemma3"),
        ("phi3", "Phi3"),
    ],
)
def test_missing_fields_have_the_defaults_of_transformers(
    kind: str, architecture: str, tmp_path: Path
) -> None:
    data = _MINIMAL | {"model_type": kind, "architectures": [f"{architecture}ForCausalLM"]}
    config = write_and_read(tmp_path, data)
    expected = AutoConfig.from_pretrained(tmp_path)
    ropes = expected.rope_parameters
    thetas = (
        [rope["rope_theta"] for rope in ropes.values()] if kind == "gemma3_text" else [ropes["rope_theta"]]
    )
    assert sorted(rotary.theta for rotary in config.rotaries) == sorted(thetas)
    assert config.norm.eps == expected.rms_norm_eps
    assert config.head_dim == (getattr(expected, "head_dim", None) or 64 // 32)
    assert config.num_kv_heads == expected.num_key_value_heads
    assert config.tie_word_embeddings == expected.tie_word_embeddings
    assert config.logit_softcap == getattr(expected, "final_logit_softcapping", None)
    assert {spec.softcap for spec in config.attention} == {getattr(expected, "attn_logit_softcapping", None)}


@pytest.mark.parametrize(
    ("kind", "architecture", "own"),
    [
        ("gpt2", "GPT2LMHeadModel", {"n_embd": 48, "n_head": 6, "n_layer": 5, "n_positions": 128}),
        ("mpt", "MptForCausalLM", {"d_model": 48, "n_heads": 6, "n_layers": 5}),
        ("bloom", "BloomForCausalLM", {"n_head": 8, "n_layer": 5}),
    ],
)
def test_the_common_names_of_fields_come_before_an_architectures_own(
    kind: str, architecture: str, own: dict[str, int], tmp_path: Path
) -> None:
    data = {"model_type": kind, "architectures": [architecture]}
    common = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    if kind == "gpt2":
        common["max_position_embeddings"] = 256
    for fields in (common, own, own | common):
        config = write_and_read(tmp_path, data | fields)
        expected = AutoConfig.from_pretrained(tmp_path)
        shape = config.hidden_size, config.num_heads, config.num_layers
        assert shape == (
            expected.hidden_size,
            expected.num_attention_heads,
            expected.num_hidden_layers,
        )
        if kind == "gpt2":
            assert config.max_position_embeddings == expected.max_position_embeddings
    assert shape == (64, 4, 3)


def test_layer_types_without_rope_theta_use_the_defaults(tmp_path: Path) -> None:
    data = _MINIMAL | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    linear = {"rope_type": "linear", "factor": 8.0}
    for ropes in ({"full_attention": linear}, {"full_attention": linear, "sliding_attention": None}):
        config = write_and_read(tmp_path, data | {"rope_parameters": ropes})
        assert config.rotaries == {Rotary(256, 1e4), Rotary(256, 1e6, RopeScaling("linear", 8.0))}


LLAMA_7B: dict[str, Any] = {
    "architectures": ["LLaMAForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_sequence_length": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}


@pytest.mark.parametrize(
    ("data", "architecture"), [(MPT_7B, "MptForCausalLM"), (LLAMA_7B, "LlamaForCausalLM")]
)
def test_alternative_spellings_of_architectures(
    data: dict[str, Any], architecture: str, tmp_path: Path
) -> None:
    config = write_and_read(tmp_path, data)
    assert (config.architecture, config.max_position_embeddings) == (architecture, 2048)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_bias": False}, "no_bias is false"),
        ({"attn_config": {"alibi": False}}, "attn_config.alibi is false"),
        ({"attn_config": {"alibi": True, "qk_ln": True}}, "attn_config.qk_ln is set"),
        (
            {"attn_config": {"alibi": True, "attn_type": "grouped_query_attention", "kv_n_heads": 2}},
            "attn_type is 'grouped_query_attention'; supported: multihead_attention",
        ),
    ],
)
def test_mpt_variants_that_transformers_does_not_support_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        write_and_read(tmp_path, MPT_7B | changes)


@pytest.mark.parametrize("name", ["yarn", "su", "longrope"])
def test_phi3_treats_yarn_as_longrope(name: str, tmp_path: Path) -> None:
    factors = {"short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 4096}
    data = _MINIMAL | {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "rope_scaling": {"type": name, **factors},
    }
    (rotary,) = write_and_read(tmp_path, data).rotaries
    expected = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert expected["rope_type"] == "longrope"
    assert isinstance(rotary.scaling, LongRope)
    assert rotary.scaling.original_max_position_embeddings == expected["original_max_position_embeddings"]
    assert (rotary.scaling.short_factors, rotary.scaling.long_factors) == ((1.0,), (2.0,))
