"""A model's shape, read from its config.json. Plain Python: `lmi check` reads it without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UnsupportedModel(ValueError):
    """The folder holds no model that we can describe; the text says what is missing or unknown."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides all of them by `factor`; `llama3` only the slow ones (Llama 3.1 model card, section rope).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What an architecture needs to know of a checkpoint."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    """As the checkpoint names it: `float32`, `float16`, `bfloat16`."""
    eos_token_ids: tuple[int, ...]

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that the KV cache holds for one token, over all layers and heads."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read `path/config.json`.

        Raises:
            UnsupportedModel: no such file, not JSON, or a field is missing or of a kind that we do not know.
        """
        file = path / "config.json"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UnsupportedModel(f"{path} has no config.json: it is not a model folder") from None
        except ValueError as error:
            raise UnsupportedModel(f"{file} is not valid JSON: {error}") from None
        if not isinstance(data, dict):
            raise UnsupportedModel(f"{file} holds no JSON object")
        try:
            return cls._from_dict(data)
        except KeyError as error:
            raise UnsupportedModel(f"{file} has no field {error}") from None

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        architectures = data.get("architectures") or ["(none named)"]
        if data.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"hidden_act is {data['hidden_act']!r}; silu is what we know")
        rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
        eos = data.get("eos_token_id")
        heads = data["num_attention_heads"]
        return cls(
            architecture=architectures[0],
            vocab_size=data["vocab_size"],
            hidden_size=data["hidden_size"],
            intermediate_size=data["intermediate_size"],
            num_layers=data["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or data["hidden_size"] // heads,
            max_position_embeddings=data["max_position_embeddings"],
            rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or data.get("rope_theta") or 10000.0),
            rope_scaling=_rope_scaling(rope),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            attention_bias=bool(data.get("attention_bias", False)),
            mlp_bias=bool(data.get("mlp_bias", False)),
            dtype=str(data.get("dtype") or data.get("torch_dtype") or "float32"),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),),
        )


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(f"rope type {kind!r} is not known; known are default, linear and llama3")
    fields = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return RopeScaling(kind, float(rope["factor"]), **{name: rope[name] for name in fields if name in rope})
