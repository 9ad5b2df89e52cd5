"""Convert a Llama folder with SmolLM's tokenizer to a GGUF file with fp32 weights, for llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open


def permute(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Reorder rows of q and k as in GGUF, with rotary pairs side by side: [num_heads * head_dim, hidden_size]."""
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder: Path, file: Path) -> None:
    """Write the model of a Hugging Face folder as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    write_shape(writer, config, "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _write_tokenizer(writer, folder, config)
    for name, values in _tensors(folder, config):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: gguf.GGUFWriter, config: Mapping[str, Any], architecture: str) -> None:
    """Write the metadata of a config.json."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope.get("full_attention", rope).get("rope_theta"))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if experts := config.get("num_local_experts", config.get("num_experts")):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if width := config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(width)
    for field, add in (
        ("sliding_window", writer.add_sliding_window),
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
    ):
        if config.get(field) and architecture.startswith("gemma"):
            add(config[field])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: Mapping[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    pieces = {id_: piece for piece, id_ in tokenizer["model"]["vocab"].items()}
    pieces |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    ids = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([pieces[id_] for id_ in ids])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if id_ in special else gguf.TokenType.NORMAL for id_ in ids]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_add_bos_token(False)


def _tensors(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping)
                values = tensors.get_tensor(name).to(torch.float32).numpy()
                target = names.get_name(name, (".weight",))
                assert target is not None, name
                part = target.split(".")[-2]
                yield target, permute(values, heads[part]) if part in heads else values
