"""`resolve` for engine=Python."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from container.explain.resolve import CannotServe, resolve
from container.explain.resolve.weights import count_parameters
from container.machine import Machine
from engines.config import BatchConfig, PythonEngineConfig
from engines.models.transformers_backend.sources import generating_architectures
from tests.container.explain.questions import CPU, GIB, GPUS, SHAPE, config, make_model

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 1024}


def make_gpt2(folder: Path, **changes: Any) -> Path:
    return make_model(folder, GPT2, **changes)


def resolve_engine(folder: Path, machine: Machine = CPU, **options: Any) -> PythonEngineConfig:
    resolved = resolve(config("Python", **options), folder, machine).config
    assert isinstance(resolved, PythonEngineConfig)
    return resolved


def test_batching_options_come_from_the_configuration(tmp_path: Path) -> None:
    resolved_engine = resolve_engine(make_gpt2(tmp_path), batch_size=6, max_batch_delay=250, job_queue_size=9)
    assert resolved_engine.batching == BatchConfig(6, 0.25, 9, 17.0)
    assert resolved_engine.parallel.threads_per_rank == 8


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({}, 1024),
        ({"n_positions": None, "max_position_embeddings": 77}, 77),
        ({"n_positions": None, "text_config": {"max_position_embeddings": 99}}, 99),
        ({"n_positions": None}, 1024),
        ({"n_positions": None, "n_ctx": 4096}, 1024),
        ({"n_positions": None, "model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.Own"}}, 2048),
    ],
)
def test_the_context_length_is_read_from_several_fields(
    tmp_path: Path, fields: dict[str, Any], context: int
) -> None:
    folder = make_gpt2(tmp_path, **fields)
    resolved = resolve(config("Python", trust_remote_code=True), folder, CPU, allow_remote_code=True)
    assert isinstance(resolved.config, PythonEngineConfig)
    assert resolved.config.model.max_model_len == context


MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
GEMMA3_TEXT = {
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "num_attention_heads": 16,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},  # as published; it holds for some layers
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": GEMMA3_TEXT,
}
LED = {"architectures": ["LEDForConditionalGeneration"], "model_type": "led"}
ENCODER_DECODER = {
    "architectures": ["EncoderDecoderModel"],
    "model_type": "encoder-decoder",
    "encoder": {"model_type": "bert"},
    "decoder": {"model_type": "bert", "max_position_embeddings": 1024},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("shape", "longest"),
    [
        (GPT2, 1024),
        (SHAPE, 8192),
        (SHAPE | {"rope_scaling": YARN}, 32768),
        (SHAPE | {"rope_scaling": {"type": "linear", "factor": 2.0}}, 16384),
        (SHAPE | {"max_position_embeddings": None, "text_config": SHAPE | {"rope_scaling": YARN}}, 32768),
        (SHAPE | {"rope_scaling": {"type": "unknown", "factor": 2.0}}, 8192),
        (SHAPE | {"rope_scaling": {"type": "linear"}}, 8192),
        (SHAPE | {"model_max_length": 131072}, 131072),  # as in Command-R
        (GPT2 | {"model_max_length": 131072}, 1024),  # learned positions
        (GPT2 | {"n_positions": None}, 1024),
        (MISTRAL, 131072),
        (GEMMA3, 131072),
        (GEMMA3 | {"text_config": GEMMA3_TEXT | {"max_position_embeddings": 4096}}, 4096),
        (LED, 16384),
        (LED | {"max_encoder_position_embeddings": 4096}, 4096),
        (ENCODER_DECODER, 512),
        (ENCODER_DECODER | {"decoder": {"model_type": "gpt2", "n_positions": 256}}, 256),
    ],
)
def test_rotary_scaling_extends_the_context_length(
    tmp_path: Path, shape: dict[str, Any], longest: int
) -> None:
    folder = make_model(tmp_path, shape)
    assert resolve_engine(folder).model.max_model_len == longest
    assert resolve_engine(folder, max_model_len=longest).model.max_model_len == longest
    with pytest.raises(CannotServe, match=f"{longest + 1} exceeds the model's context length of {longest}"):
        resolve_engine(folder, max_model_len=longest + 1)


def test_a_length_that_the_model_does_not_use_is_no_limit(tmp_path: Path) -> None:
    """T5 has relative positions, so its `n_positions` is only the length for which it was trained."""
    t5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 512}
    folder = make_model(tmp_path, t5)
    assert resolve_engine(folder).model.max_model_len == 512
    assert resolve_engine(folder, max_model_len=4096).model.max_model_len == 4096


def test_dynamic_scaling_does_not_change_the_default_length(tmp_path: Path) -> None:
    folder = make_model(tmp_path, rope_scaling={"type": "dynamic", "factor": 2.0})
    assert resolve_engine(folder).model.max_model_len == 8192
    assert resolve_engine(folder, max_model_len=16384).model.max_model_len == 16384


def test_layers_are_distributed_over_gpus(tmp_path: Path) -> None:
    folder = make_gpt2(tmp_path)
    assert resolve_engine(folder, GPUS, tensor_parallel_degree=2).parallel.tp_size == 2
    assert resolve_engine(folder, GPUS, tensor_parallel_degree="max").parallel.tp_size == 4
    assert resolve_engine(folder, CPU, tensor_parallel_degree="max").parallel.tp_size == 1
    with pytest.raises(CannotServe, match="8 needs 8 GPUs under engine=Python; this machine has 4"):
        resolve_engine(folder, GPUS, tensor_parallel_degree=8)


def test_an_unknown_architecture_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(
        CannotServe, match="no text generation model GPT2LMHeadModl; did you mean GPT2LMHeadModel"
    ):
        resolve_engine(make_gpt2(tmp_path, architectures=["GPT2LMHeadModl"]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {"depth": 2}},
            "no text generation model Qwen2_5_VLForConditionalGeneration: it takes images or audio$",
        ),
        (
            {"architectures": ["Qwen2AudioForConditionalGeneration"], "model_type": "qwen2_audio"},
            "no text generation model Qwen2AudioForConditionalGeneration: it takes images or audio$",
        ),
        (
            {"architectures": ["GraniteSpeechForConditionalGeneration"], "model_type": "granite_speech"},
            "no text generation model GraniteSpeechForConditionalGeneration: it takes images or audio$",
        ),
        (
            {
                "architectures": ["VoxtralForConditionalGeneration"],
                "model_type": "voxtral",
                "text_config": {},
            },
            "no text generation model VoxtralForConditionalGeneration: it takes images or audio$",
        ),
        ({"architectures": ["BaichuanForCausalLM"]}, "no text generation model BaichuanForCausalLM$"),
        ({"model_type": "quin"}, "no GPT2LMHeadModel of model type 'quin'; GPT2LMHeadModel has .*'gpt2'"),
        ({"model_type": None}, "config.json has no model_type; GPT2LMHeadModel has .*'gpt2'"),
        ({"architectures": None, "model_type": "own"}, "config.json does not name an architecture"),
    ],
)
def test_unknown_models_are_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CannotServe, match=reason):
        resolve_engine(make_gpt2(tmp_path, **changes))


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("PhiForCausalLM", "phi-msft"), ("RwkvForCausalLM", "rwkv5"), ("DeepseekV3ForCausalLM", "kimi_k2")],
)
def test_code_of_another_model_type_is_not_that_of_transformers(
    tmp_path: Path, architecture: str, model_type: str
) -> None:
    own_code = {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Own"}}
    folder = make_model(tmp_path, architectures=[architecture], model_type=model_type, **own_code)
    resolved = resolve(config("Python", trust_remote_code=True), folder, CPU, allow_remote_code=True)
    assert isinstance(resolved.config, PythonEngineConfig)
    assert resolved.config.trust_remote_code
    with pytest.raises(CannotServe, match=f"{architecture} for model_type '{model_type}'"):
        resolve(config(), folder, CPU)


def test_a_models_own_code_needs_trust_remote_code_and_allow_remote_code(tmp_path: Path) -> None:
    folder = make_gpt2(
        tmp_path, architectures=["OwnForCausalLM"], auto_map={"AutoModelForCausalLM": "own.Own"}
    )
    with pytest.raises(CannotServe, match=r"set option\.trust_remote_code=true"):
        resolve(config("Python"), folder, CPU, allow_remote_code=True)
    with pytest.raises(CannotServe, match="--allow-remote-code"):
        resolve(config("Python", trust_remote_code=True), folder, CPU)
    resolved = resolve(config("Python", trust_remote_code=True), folder, CPU, allow_remote_code=True)
    assert isinstance(resolved.config, PythonEngineConfig)
    assert resolved.config.trust_remote_code
    assert "runs the code that comes with the model" in resolved.notes[-1]


def test_code_that_is_not_needed_is_not_run(tmp_path: Path) -> None:
    folder = make_gpt2(tmp_path, auto_map={"AutoModelForCausalLM": "own.Own"})
    resolved = resolve(config("Python", trust_remote_code=True), folder, CPU, allow_remote_code=True)
    assert isinstance(resolved.config, PythonEngineConfig)
    assert not resolved.config.trust_remote_code
    assert "remote code is not used" in resolved.notes[-1]


def test_an_alternative_spelling_of_an_architecture_needs_no_remote_code(tmp_path: Path) -> None:
    folder = make_gpt2(
        tmp_path, architectures=["PhiMoEForCausalLM"], auto_map={"AutoModelForCausalLM": "phi.PhiMoE"}
    )
    assert not resolve_engine(folder).trust_remote_code


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("InternLM3ForCausalLM", "internlm3"),
        ("Qwen3_5ForConditionalGeneration", "qwen3_5"),
        ("Llama4ForConditionalGeneration", "llama4"),
        ("ExaoneMoEForCausalLM", "exaone_moe"),
    ],
)
def test_a_model_that_transformers_finds_by_its_type_needs_no_remote_code(
    tmp_path: Path, architecture: str, model_type: str
) -> None:
    folder = make_gpt2(
        tmp_path,
        architectures=[architecture],
        model_type=model_type,
        auto_map={"AutoModelForCausalLM": "own.Own"},
        text_config={},
    )
    assert not resolve_engine(folder).trust_remote_code


def test_another_class_of_a_known_type_is_other_code(tmp_path: Path) -> None:
    for architecture, model_type in (
        ("OwnLlamaForCausalLM", "llama"),
        ("LlamaOwnForCausalLM", "llama"),
        ("LlamaForSequenceClassification", "llama"),
        ("BertForMaskedLM", "bert"),
        ("WhisperForConditionalGeneration", "whisper"),
    ):
        with pytest.raises(CannotServe, match="no text generation model"):
            resolve_engine(make_gpt2(tmp_path, architectures=[architecture], model_type=model_type))


@pytest.mark.parametrize("engine", ["MPI", "Python"])
def test_quantized_weights_that_the_config_does_not_declare_are_refused(tmp_path: Path, engine: str) -> None:
    folder = make_model(tmp_path)
    tensors = {"model.norm.weight": torch.ones(4), "attn.bias": torch.ones(2, 2, dtype=torch.uint8)}
    name = "model.layers.0.self_attn.q_proj.weight"
    for dtype in (torch.float8_e4m3fn, torch.int8, torch.uint32):
        save_file({**tensors, name: torch.ones(2, 2).to(dtype)}, folder / "model.safetensors")
        with pytest.raises(CannotServe, match=f"the weights are quantized: {name} has the dtype"):
            resolve(config(engine), folder, CPU)
    save_file({**tensors, name: torch.ones(2, 2)}, folder / "model.safetensors")
    resolve(config(engine), folder, CPU)


def test_generating_architectures_are_read_from_transformers() -> None:
    names = generating_architectures()
    assert {"LlamaForCausalLM", "FalconForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"} <= names
    assert {"LEDForConditionalGeneration", "EncoderDecoderModel", "UMT5ForConditionalGeneration"} <= names
    assert not {"BertForSequenceClassification", "ViTModel"} & names
    assert not {"Qwen2AudioForConditionalGeneration", "VoxtralForConditionalGeneration"} & names


def write_sparse_weights(path: Path, count: int) -> None:
    """Write a file with one bf16 tensor of `count` elements. It is sparse after its header."""
    header = json.dumps({"a": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * count)


def test_memory_is_predicted_from_the_headers_of_the_weights(tmp_path: Path) -> None:
    """2 Gi parameters in bf16, whatever dtype config.json has."""
    folder = make_gpt2(tmp_path, dtype="float32")
    write_sparse_weights(folder / "model.safetensors", 2 * GIB)
    with pytest.raises(CannotServe, match=r"take 8\.0 GiB in memory, but only 6\.0 GiB are free"):
        resolve_engine(folder, dataclasses.replace(CPU, memory_available_bytes=6 * GIB))
    assert resolve_engine(folder).model.dtype == "fp32"


def test_another_copy_of_the_weights_is_not_counted(tmp_path: Path) -> None:
    folder = make_gpt2(tmp_path)
    (folder / "model.safetensors").unlink()
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for name in shards.values():
        write_sparse_weights(folder / name, GIB)
    write_sparse_weights(folder / "consolidated.safetensors", 2 * GIB)
    assert count_parameters(folder) == 2 * GIB
