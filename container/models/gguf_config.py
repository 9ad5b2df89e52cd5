"""The config.json of a model, read from the metadata of its GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

_NEEDED = {
    "attention.head_count": "num_attention_heads",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
}
"""Required metadata keys, without the architecture's prefix, and their fields in config.json."""
_FIELDS = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_used_count": "num_experts_per_tok",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
"""Optional metadata keys. If one is missing, the default of transformers' config class applies."""
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
_EMBEDDING = "token_embd.weight"
"""A tensor of every model. Files with only a vocabulary have no tensors."""
_DTYPES = {"F16": "float16", "BF16": "bfloat16"}


class UnknownGguf(Exception):
    """The file is not supported. The message says what was found."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How GGUF files of one architecture differ from Hugging Face checkpoints."""

    name: str
    """Class name in `architectures` of config.json."""
    model_type: str
    interleaved: bool = False
    """Whether the two rows of a rotary pair of queries and keys are adjacent."""
    norm_offset: float = 0.0
    """Constant that GGUF files add to the weights of norms."""
    num_layers_of_27b: int | None = None
    """Number of layers of the 27B model, which scales attention by hidden_size / heads."""


ARCHITECTURES = {
    "gemma": Architecture("GemmaForCausalLM", "gemma", norm_offset=1.0),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", norm_offset=1.0, num_layers_of_27b=46),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", norm_offset=1.0, num_layers_of_27b=62),
    "llama": Architecture("LlamaForCausalLM", "llama", interleaved=True),
    "phi3": Architecture("Phi3ForCausalLM", "phi3"),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe"),
}
"""Supported architectures, by the value of `general.architecture`."""
_MIXTRAL = Architecture("MixtralForCausalLM", "mixtral", interleaved=True)
"""Architecture of Llama files with experts."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a model's first GGUF file by key, and the tensors of all its files by name."""

    reader: gguf.GGUFReader
    others: tuple[gguf.GGUFReader, ...] = ()
    """Readers of the files after the first."""

    def get(self, key: str) -> Any:
        """Return a value or None. Floats are the shortest with the same fp32 value: 1e-05 for 9.999999747378752e-06."""
        field = self.reader.get_field(key)
        value = None if field is None else field.contents()
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise UnknownGguf(f"the GGUF file has no field '{key}'")
        return value

    @property
    def tensors(self) -> dict[str, Any]:
        return {tensor.name: tensor for reader in (self.reader, *self.others) for tensor in reader.tensors}

    @property
    def architecture(self) -> Architecture:
        """The model's architecture. Raises UnknownGguf."""
        kind = self["general.architecture"]
        if kind not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UnknownGguf(f"the GGUF file has an unsupported architecture (got {kind}); allowed: {known}")
        has_experts = bool(self.get(f"{kind}.expert_count"))
        return _MIXTRAL if kind == "llama" and has_experts else ARCHITECTURES[kind]


def read_config(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of config.json. Raises UnknownGguf."""
    kind, tensors, architecture = metadata["general.architecture"], metadata.tensors, metadata.architecture
    count = len(metadata.others) + 1
    if (stated := metadata.get("split.count") or 1) != count:
        raise UnknownGguf(
            f"the model is split into {stated} GGUF files (got {count}); expected names: NAME-00001-of-0000N.gguf"
        )
    config = {field: metadata[f"{kind}.{key}"] for key, field in _NEEDED.items()}
    found = {field: metadata.get(f"{kind}.{key}") for key, field in _FIELDS.items()}
    config |= {name: value for name, value in found.items() if value}  # a window of 0 means none
    if (layers := architecture.num_layers_of_27b) is not None:
        wide = config["num_hidden_layers"] == layers
        config["query_pre_attn_scalar"] = (
            config["hidden_size"] // config["num_attention_heads"] if wide else config.get("head_dim", 256)
        )
    if experts := metadata.get(f"{kind}.expert_count"):
        _require_stacks(tensors)
        # llama.cpp always normalizes the expert weights of Qwen3 to a sum of 1.
        config |= {"num_local_experts": experts, "num_experts": experts, "norm_topk_prob": True}
    if _EMBEDDING not in tensors:
        raise UnknownGguf(f"the GGUF file has no tensor '{_EMBEDDING}'")
    vocab_size = int(tensors[_EMBEDDING].shape[1])
    ids = special_ids(metadata, vocab_size)
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "dtype": _dtype(tensors),
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": vocab_size,
        **{field: ids[name] for field, name in _TOKENS.items()},
        **config,
        **_rope(metadata, kind, config, tensors),
    }


def special_ids(metadata: Metadata, num_tokens: int) -> dict[str, int | None]:
    """Return the ids of special tokens, by GGUF's names. None: not in the metadata, or not below `num_tokens`."""
    names = ("bos", "eos", "eot", "padding", "unknown")
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names}
    return {name: id_ if id_ in range(num_tokens) else None for name, id_ in ids.items()}


def _require_stacks(tensors: Mapping[str, Any]) -> None:
    """Raise UnknownGguf if each expert is a separate tensor, as in files of early 2024."""
    if not any(name.endswith(".ffn_gate_exps.weight") for name in tensors):
        raise UnknownGguf(
            "the GGUF file has one tensor per expert, an outdated layout; convert the model again"
        )


def _dtype(tensors: Mapping[str, Any]) -> str:
    """Return the dtype of all matrices except routers; float32 if dtypes differ or matrices are quantized."""
    kinds = {
        tensor.tensor_type.name
        for name, tensor in tensors.items()
        if len(tensor.shape) > 1 and not name.endswith(".ffn_gate_inp.weight")
    }
    return _DTYPES.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"


def _rope(
    metadata: Metadata, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config fields of the rotary embedding. GGUF stores frequency factors as tensors."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    share = (metadata.get(f"{kind}.rope.dimension_count") or head_dim) / head_dim
    fields: dict[str, Any] = {} if share == 1 else {"partial_rotary_factor": share}
    # `scale_linear` is the key of files of 2023.
    factor = metadata.get(f"{kind}.rope.scaling.factor") or metadata.get(f"{kind}.rope.scale_linear")
    scaling = metadata.get(f"{kind}.rope.scaling.type") or ("linear" if factor else "none")
    if "rope_factors_long.weight" in tensors:
        rope = {
            "rope_type": "longrope",
            "long_factor": _numbers(tensors["rope_factors_long.weight"]),
            "short_factor": _numbers(tensors["rope_factors_short.weight"]),
            "attention_factor": metadata.get(f"{kind}.rope.scaling.attn_factor"),
        }
    elif "rope_freqs.weight" in tensors:
        # Llama 3.1's scaling as precomputed factors, which are the same for all lengths.
        factors = _numbers(tensors["rope_freqs.weight"])
        rope = {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "attention_factor": 1.0,
        }
    elif scaling in ("linear", "yarn"):
        factor = factor or metadata[f"{kind}.rope.scaling.factor"]
        if factor < 1:
            raise UnknownGguf(
                f"the GGUF file has a rope scaling factor below 1 (got {factor}); convert the model again"
            )
        rope = {"rope_type": scaling, "factor": factor}
    elif scaling == "none":
        return fields
    else:
        raise UnknownGguf(
            f"the GGUF file has unsupported rope scaling (got {scaling}); allowed: linear, longrope, none, yarn"
        )
    return {**fields, "rope_scaling": rope}


def _numbers(tensor: Any) -> list[float]:
    return [float(value) for value in dequantize(tensor.data, tensor.tensor_type).reshape(-1)]
