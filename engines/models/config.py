"""A model's shape, read from its config.json. Plain Python: `lmi check` reads it without torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKED = 512
"""Packing for a CPU rounds the inputs of a matrix up to whole blocks of so many."""


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

    def weight_bytes(self, element: int | None, ranks: int = 1) -> int:
        """What one rank's parameters should take in memory, norms and biases left out.

        element: bytes of each number; None: as on a CPU, where embeddings are looked up in fp32 and the matrices of
        a checkpoint of 16 bits are kept as packed fp16.
        """
        hidden, middle = self.hidden_size, self.intermediate_size // ranks
        heads = self.num_heads * self.head_dim // ranks
        keys_values = 2 * self.num_kv_heads * self.head_dim // ranks
        vocabulary = self.vocab_size // ranks
        # (outputs, inputs)
        matrices = [(heads + keys_values, hidden), (hidden, heads), (2 * middle, hidden), (hidden, middle)]
        matrices = [*matrices * self.num_layers, (vocabulary, hidden)]
        if element is not None:
            lookup = 0 if self.tie_word_embeddings else vocabulary * hidden
            return element * (sum(outputs * inputs for outputs, inputs in matrices) + lookup)
        lookup = 4 * vocabulary * hidden
        if self.dtype == "float32":
            return 4 * sum(outputs * inputs for outputs, inputs in matrices) + lookup
        return 2 * sum(outputs * -(-inputs // _PACKED) * _PACKED for outputs, inputs in matrices) + lookup

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read `path/config.json`.

        Raises:
            UnsupportedModel: no such file, not JSON, or a field is missing or of a kind that we do not know.
        """
        file = path / "config.json"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
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
        if not isinstance(architectures, list) or not isinstance(architectures[0], str):
            raise UnsupportedModel(f"architectures is {architectures!r}; a list of names is needed")
        if data.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"hidden_act is {data['hidden_act']!r}; silu is what we know")
        rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise UnsupportedModel(f"rope_parameters or rope_scaling is {rope!r}; an object is needed")
        hidden_size, heads = _count(data, "hidden_size"), _count(data, "num_attention_heads")
        kv_heads = _count(data, "num_key_value_heads", heads)
        head_dim = _count(data, "head_dim", hidden_size // heads)
        if heads % kv_heads:
            raise UnsupportedModel(f"{heads} attention heads cannot be shared evenly by {kv_heads} KV heads")
        if head_dim % 2:
            raise UnsupportedModel(f"head_dim is {head_dim}; rotary embedding needs an even number")
        return cls(
            architecture=architectures[0],
            vocab_size=_count(data, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_count(data, "intermediate_size"),
            num_layers=_count(data, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=_count(data, "max_position_embeddings"),
            rms_norm_eps=_positive("rms_norm_eps", data.get("rms_norm_eps", 1e-6)),
            rope_theta=_positive("rope_theta", rope.get("rope_theta") or data.get("rope_theta") or 10000.0),
            rope_scaling=_rope_scaling(rope),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            attention_bias=bool(data.get("attention_bias", False)),
            mlp_bias=bool(data.get("mlp_bias", False)),
            dtype=str(data.get("dtype") or data.get("torch_dtype") or "float32"),
            eos_token_ids=_token_ids("eos_token_id", data.get("eos_token_id")),
        )


def _count(data: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number above 0; null means the default where there is one."""
    value = data.get(name, default) if default is not None else data[name]
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise UnsupportedModel(f"{name} is {value!r}; a whole number above 0 is needed")
    return value


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UnsupportedModel(f"{name} is {value!r}; a number above 0 is needed")
    return float(value)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    """One id, several, or null."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(token) is not int or token < 0 for token in ids):
        raise UnsupportedModel(f"{name} is {value!r}; a token id or a list of them is needed")
    return tuple(ids)


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(f"rope type {kind!r} is not known; known are default, linear and llama3")
    names = ("low_freq_factor", "high_freq_factor")
    given: dict[str, Any] = {name: _positive(name, rope[name]) for name in names if name in rope}
    if "original_max_position_embeddings" in rope:
        given["original_max_position_embeddings"] = _count(rope, "original_max_position_embeddings")
    return RopeScaling(kind, _positive("factor", rope["factor"]), **given)
