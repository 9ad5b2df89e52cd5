"""Reading of config.json for a Llama model: fields, RoPE variants, and errors."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, GPTNeoXConfig, LlamaConfig

from engines.models.architectures import read_config
from engines.models.config import (
    AttentionSpec,
    DynamicRope,
    LongRope,
    ModelConfig,
    NormSpec,
    RopeScaling,
    Rotary,
    UnsupportedModel,
)
from engines.models.config.fields import Fields
from tests.engines.models.conftest import write_and_read

MINIMAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
}
_YARN: dict[str, Any] = {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 32}}


def test_a_config_written_by_transformers_iswrite_and_read(tmp_path: Path) -> None:
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        eos_token_id=[2, 7],
        dtype="bfloat16",
    ).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        norm=NormSpec(1e-5),
        attention=(AttentionSpec(scale=0.125, rotary=Rotary(64, 100000.0)),) * 30,
        tie_word_embeddings=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dtype="bfloat16",
        eos_token_ids=(2, 7),
    )
    assert config.kv_bytes_per_token("fp32", 1) == 4 * 30 * 2 * 3 * 64


def test_defaults_of_fields_that_old_files_lack(tmp_path: Path) -> None:
    data = {name: value for name, value in MINIMAL.items() if name != "num_key_value_heads"}
    config = write_and_read(tmp_path, data)
    assert config.num_kv_heads == config.num_heads == 9
    assert config.head_dim == 4
    assert config.rotaries == {Rotary(4, 10000.0)}
    assert config.dtype == "float32"
    assert config.eos_token_ids == ()
    assert not config.tie_word_embeddings
    assert not config.qkv_bias
    assert not config.output_bias
    assert not config.mlp_bias


@pytest.mark.parametrize(
    ("eos_token_id", "expected"), [(2, (2,)), ([1, 5], (1, 5)), (None, ()), ([], ()), (0, (0,))]
)
def test_eos_token_ids(eos_token_id: Any, expected: tuple[int, ...], tmp_path: Path) -> None:
    assert write_and_read(tmp_path, MINIMAL | {"eos_token_id": eos_token_id}).eos_token_ids == expected


_LINEAR = RopeScaling("linear", 4.0)
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1, 8]}


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4}}, _LINEAR),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, _LINEAR),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}}, _LINEAR),
        (
            {"rope_scaling": _LLAMA3 | {"original_max_position_embeddings": 8192}},
            RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_scaling": _LLAMA3}, RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
        (
            {"rope_scaling": _LONG, "original_max_position_embeddings": 16},
            LongRope((1.0, 1.5), (1.0, 8.0), 16, math.sqrt(1.5)),
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.5}}, DynamicRope(2.5, 64)),
    ],
)
def test_old_and_new_forms_of_rope_scaling(
    fields: dict[str, Any], scaling: RopeScaling | LongRope | DynamicRope, tmp_path: Path
) -> None:
    config = write_and_read(tmp_path, MINIMAL | {"rope_theta": 5e5} | fields)
    assert config.rotaries == {Rotary(4, 5e5, scaling)}


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"type": "default"}, 64),
        ({"type": "dynamic", "factor": 2.5}, 160),
        ({"type": "linear", "factor": 4}, 256),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}, 192),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, 64),
        ({"type": "yarn", "original_max_position_embeddings": 16}, 64),
        ({"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}, 64),
        ({"type": "longrope", "short_factor": [1, 1], "long_factor": [8, 8], "factor": 8.0}, 64),
    ],
)
def test_rope_scaling_extends_the_longest_sequence(
    rope: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    config = write_and_read(tmp_path, MINIMAL | {"rope_scaling": rope})
    assert config.max_position_embeddings == 64
    assert config.longest_sequence == longest


@pytest.mark.parametrize(
    "fields",
    [
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ],
)
def test_each_layer_type_has_its_own_rotary_embedding(fields: dict[str, Any]) -> None:
    full, sliding = (Fields(fields).rotary(8, f"{kind}_attention") for kind in ("full", "sliding"))
    assert full == Rotary(8, 1e6, RopeScaling("linear", 8.0))
    assert sliding == Rotary(8, 1e4)


_SCALED = {"rope_type": "linear", "factor": 8.0}
_PLAIN = {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize(
    "other_fields", [{}, {"rope_theta": 5e5}, {"rope_scaling": {}}, {"rope_scaling": None}]
)
def test_rope_scaling_replaces_rope_parameters(other_fields: dict[str, Any]) -> None:
    fields = {"rope_parameters": _PLAIN, "rope_scaling": _SCALED, **other_fields}
    expected = LlamaConfig(**deepcopy(fields)).rope_parameters
    rotary = Fields(fields).rotary(8)
    scaling = None if expected["rope_type"] == "default" else RopeScaling("linear", expected["factor"])
    assert rotary == Rotary(8, expected["rope_theta"], scaling)


def test_rope_scaling_changes_the_parameters_of_full_attention() -> None:
    by_type = {"full_attention": _PLAIN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    fields = {"rope_parameters": by_type, "rope_scaling": _SCALED}
    expected = Gemma3TextConfig(**deepcopy(fields)).rope_parameters
    assert expected["full_attention"] == _PLAIN | _SCALED
    assert expected["sliding_attention"] == by_type["sliding_attention"]
    full, sliding = (Fields(fields).rotary(8, f"{kind}_attention") for kind in ("full", "sliding"))
    assert full == Rotary(8, 1e6, RopeScaling("linear", 8.0))
    assert sliding == Rotary(8, 1e4)


@pytest.mark.parametrize("scaled", [_SCALED, _SCALED | {"partial_rotary_factor": 0.75}])
def test_rope_scaling_overrides_partial_rotary_factor(scaled: dict[str, Any]) -> None:
    plain = _PLAIN | {"partial_rotary_factor": 0.5}
    fields = {"rope_parameters": plain, "rope_scaling": scaled}
    expected = GPTNeoXConfig(**deepcopy(fields)).rope_parameters
    assert Fields(fields).rotated_features(16, 0.25) == 16 * expected["partial_rotary_factor"]


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500.0, "rotary_emb_base": 700},
        {"rope_theta": 500.0},
        {"rotary_emb_base": 700, "rope_scaling": _SCALED},
        {"rotary_emb_base": 700, "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}},
        {"rotary_pct": 0.75, "partial_rotary_factor": 0.5},
    ],
)
def test_gpt_neox_has_its_own_names_of_rope_parameters(fields: dict[str, Any], tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 8, "num_hidden_layers": 1}
    named = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 9}
    expected = GPTNeoXConfig.from_dict(deepcopy(shape | fields)).rope_parameters
    (rotary,) = write_and_read(tmp_path, {**named, **shape, **fields}).rotaries
    theta, rotated = expected["rope_theta"], 16 * expected["partial_rotary_factor"]
    assert (rotary.theta, rotary.dim) == (theta, rotated)


@pytest.mark.parametrize("field", sorted(set(MINIMAL) - {"architectures", "num_key_value_heads"}))
def test_a_missing_field_is_refused(field: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=rf"config\.json has no field '{field}'"):
        write_and_read(tmp_path, {name: value for name, value in MINIMAL.items() if name != field})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, r"hidden_act is 'mish'; supported: gelu, gelu_new"),
        (
            {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}},
            "rope type 'proportional'.*supported: .*longrope, yarn",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "required: one for all layers"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2},
            "needs more than 2 rotary features",
        ),
        (_YARN | {"rope_theta": 1}, "rope_theta is 1; rope type 'yarn' requires another value"),
        (
            _YARN | {"max_position_embeddings": "long"},
            "max_position_embeddings is 'long'; required: an integer",
        ),
        ({"vocab_size": "97"}, "vocab_size is '97'; required: an integer of at least 1"),
        ({"hidden_size": 36.5}, r"hidden_size is 36\.5"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": True}, "num_key_value_heads is True"),
        ({"intermediate_size": None}, "intermediate_size is None"),
        ({"head_dim": "64"}, "head_dim is '64'"),
        ({"head_dim": 5}, "head_dim is 5; rotary embedding requires an even number"),
        ({"num_key_value_heads": 2}, "9 attention heads are not divisible by 2 KV heads"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        (
            {"architectures": ["NoSuchForCausalLM"]},
            "'NoSuchForCausalLM'; supported: Bloom.*Falcon.*Llama.*Qwen3",
        ),
        ({"architectures": []}, "does not name an architecture"),
        ({"rope_scaling": "linear"}, "rope"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [1, None]}, "eos_token_id"),
    ],
)
def test_an_invalid_value_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        write_and_read(tmp_path, MINIMAL | changes)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"type": "linear"}, "no field 'factor'"),
        ({"type": "dynamic"}, "no field 'factor'"),
        ({"type": "longrope", "short_factor": [1, 1]}, "no field 'long_factor'"),
        (
            {"type": "su", "short_factor": [1, 1], "long_factor": [1]},
            r"long_factor is \[1\]; required: a list of 2 numbers",
        ),
        (
            {"type": "su", "short_factor": [1, "2"], "long_factor": [1, 1]},
            "short_factor is '2'; required: a number above 0",
        ),
        (
            _YARN["rope_scaling"] | {"mscale": "1", "mscale_all_dim": 1},
            "mscale is '1'; required: a number above 0",
        ),
        (
            _YARN["rope_scaling"] | {"mscale": 1, "mscale_all_dim": [1]},
            r"mscale_all_dim is \[1\]; required: a number above 0",
        ),
    ],
)
def test_an_invalid_rope_scaling_is_refused(rope: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        write_and_read(tmp_path, MINIMAL | {"rope_scaling": rope})


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"load_in_4bit": True},
    ],
)
def test_quantized_weights_are_refused(quantization: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"the weights are quantized \(quantization_config"):
        write_and_read(tmp_path, MINIMAL | {"quantization_config": quantization})
    write_and_read(tmp_path, MINIMAL | {"quantization_config": None})


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not valid JSON"), (b"\xff\xfe\x00", "not valid JSON"), (b"[1]", "is not a JSON object")],
)
def test_a_file_that_is_not_a_json_object_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=message):
        read_config(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"has no config\.json: it is not a model folder"):
        read_config(tmp_path)


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("x")
    with pytest.raises(UnsupportedModel, match="not a model folder"):
        read_config(file)
