"""The fields of a config.json, validated as they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.models.config.attention import DynamicRope, LongRope, RopeScaling, Rotary, Scaling, Yarn

_ROPES = ("rope_scaling", "rope_parameters")
"""Fields with the parameters of rotary embeddings. The first one present takes precedence."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "num_kv_heads")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MAX_COUNTS = dict.fromkeys(_LAYERS, 4096) | dict.fromkeys((*_HEADS, *_EXPERTS), 65536)
"""Maximum numbers of layers, heads and experts. Each gets an object, so huge numbers would fill the memory."""
_MAX_OTHER_COUNT = 2**31 - 1
_CLASS_NAMES = {
    "ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM",
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
}
"""Class names in transformers, by the differing names in published models."""


class UnsupportedModel(ValueError):
    """The folder has no supported model. The message says what is missing or unknown."""


def config_json(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config.json. Raises UnsupportedModel."""
    file = folder / "config.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UnsupportedModel(f"{folder} has no config.json: it is not a model folder") from None
    except OSError as error:
        raise UnsupportedModel(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{file} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise UnsupportedModel(f"{file} is not a JSON object")
    return data


def class_name(architecture: str) -> str:
    """Return transformers' spelling of an architecture name from config.json."""
    return _CLASS_NAMES.get(architecture, architecture)


class Fields:
    """The fields of one config.json.

    Every method raises `UnsupportedModel` with the field's name if the value is invalid, and `KeyError` if the field is
    missing and has no default.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def with_defaults(self, **defaults: Any) -> Fields:
        """Return a copy with defaults for fields that the file lacks."""
        return Fields({**defaults, **self._data})

    def without(self, *names: str) -> Fields:
        """Return a copy without the named fields."""
        return Fields({name: value for name, value in self._data.items() if name not in names})

    def with_rope_type(self, new: str, old: str) -> Fields:
        """Return a copy with the rope type `new` in place of `old`."""
        changed = {}
        for name in _ROPES:
            rope = self._data.get(name)
            if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) == old:
                changed[name] = {**rope, "rope_type": new}
        return Fields({**self._data, **changed})

    def require_plain_weights(self) -> None:
        """Raise `UnsupportedModel` if the checkpoint's weights are quantized, for example with AWQ."""
        if self._data.get("quantization_config"):
            raise UnsupportedModel(
                "the weights are quantized (quantization_config in config.json); use the unquantized model, which"
                " option.quantize quantizes on a CPU"
            )

    def count(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Return an integer of at least `minimum` and of reasonable size. null means the default, if there is one."""
        value = self._data.get(name, default) if default is not None else self._data[name]
        if value is None and default is not None:
            return default
        if type(value) is not int or value < minimum:
            raise UnsupportedModel(f"{name} is {value!r}; required: an integer of at least {minimum}")
        maximum = _MAX_COUNTS.get(name, _MAX_OTHER_COUNT)
        if value > maximum:
            raise UnsupportedModel(f"{name} is too large; allowed: at most {maximum}")
        return value

    def first_count(self, *names: str) -> int:
        """Return the first of these fields that is a usable count; 0 if none is."""
        for name in names:
            try:
                if found := self.count_or_none(name):
                    return found
            except UnsupportedModel:
                continue
        return 0

    def count_or_none(self, name: str, default: int | None = None) -> int | None:
        """Return an integer above 0, or None for null. The default applies only if the field is missing."""
        return None if self._data.get(name, default) is None else self.count(name, default)

    def positive(self, name: str, default: float) -> float:
        return _positive(name, self._data.get(name, default))

    def positive_or_none(self, name: str) -> float | None:
        return None if self._data.get(name) is None else self.positive(name, 0)

    def has(self, name: str) -> bool:
        return name in self._data

    def is_set(self, name: str) -> bool:
        """Return whether the field is present and neither null nor false."""
        return self._data.get(name) not in (None, False)

    def numbers(self, name: str) -> list[int]:
        """Return a list of integers. It is empty if the field is null or missing."""
        return self._list(name, int, [])

    def words(self, name: str) -> list[str]:
        """Return a list of strings. It is empty if the field is null or missing."""
        return self._list(name, str, [])

    def _list(self, name: str, kind: type, default: list[Any]) -> list[Any]:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise UnsupportedModel(f"{name} is {value!r}; required: a list of {kind.__name__}")
        return value

    def part(self, name: str) -> Fields:
        """Return the fields of a nested object. They are empty if the object is missing."""
        value = self._data.get(name) or {}
        if not isinstance(value, dict):
            raise UnsupportedModel(f"{name} is {value!r}; required: an object")
        return Fields(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean. null means the default."""
        value = self._data.get(name)
        return default if value is None else bool(value)

    def one_of(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self._data.get(name, default)
        if value not in allowed:
            raise UnsupportedModel(f"{name} is {value!r}; supported: {', '.join(allowed)}")
        return str(value)

    @property
    def architecture(self) -> str:
        names = self._data.get("architectures")
        if not names:
            raise UnsupportedModel("config.json does not name an architecture (architectures)")
        if not isinstance(names, list) or not isinstance(names[0], str):
            raise UnsupportedModel(f"architectures is {names!r}; required: a list of names")
        return class_name(names[0])

    @property
    def dtype(self) -> str:
        """The checkpoint's dtype, as torch names it."""
        return str(self._data.get("dtype") or self._data.get("torch_dtype") or "float32")

    @property
    def model_max_length(self) -> int:
        """Length for which the model was trained, if the file has it, as those of Command-R do; else 0."""
        try:
            return self.count_or_none("model_max_length") or 0
        except UnsupportedModel:  # some files have 1e30 for no limit
            return 0

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return the ids of a field that holds one id, a list of ids, or null."""
        value = self._data.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(type(token) is not int or token < 0 for token in ids):
            raise UnsupportedModel(f"{name} is {value!r}; required: a token id or a list of token ids")
        return tuple(ids)

    def rotary(self, dim: int, layer_type: str | None = None, default_theta: float = 10000.0) -> Rotary:
        """Return the rotary embedding of the first `dim` features of each head.

        Args:
            layer_type: `full_attention` or `sliding_attention`, if each has its own theta and scaling.
            default_theta: theta if the file has none.
        """
        if dim % 2:
            raise UnsupportedModel(f"head_dim is {dim}; rotary embedding requires an even number")
        rope = self._rope(layer_type)
        theta = _positive("rope_theta", rope.get("rope_theta") or default_theta)
        scaling = self._scaling(rope, dim)
        if isinstance(scaling, Yarn) and theta == 1:
            raise UnsupportedModel("rope_theta is 1; rope type 'yarn' requires another value")
        return Rotary(dim, theta, scaling)

    def rope_scalings(self, dim: int) -> list[Scaling]:
        """Return the scaling of the rotary embeddings of each layer type. dim: as for `rotary`."""
        by_type = self.part("rope_parameters")._data.items()
        kinds: list[str | None] = [kind for kind, rope in by_type if isinstance(rope, dict)]
        return [self._scaling(self._rope(kind), dim) for kind in kinds or [None]]

    def _scaling(self, rope: dict[str, Any], dim: int) -> Scaling:
        name = "max_position_embeddings"
        return _rope_scaling(rope, dim, None if self._data.get(name) is None else self.count(name))

    def rope_types(self, fixed_by: str = "") -> set[str]:
        """Return the rope types in the file, for all layer types together, without those that have this parameter."""
        ropes = [self.part(name)._data for name in _ROPES]
        ropes += [each for rope in ropes for each in rope.values() if isinstance(each, dict)]
        ropes = [rope for rope in ropes if not rope.get(fixed_by)]
        return {str(rope.get("rope_type") or rope.get("type") or "default") for rope in ropes}

    def _rope(self, layer_type: str | None) -> dict[str, Any]:
        """Return the rope parameters for a layer type. Older files have them in several fields.

        As in transformers, `rope_scaling` replaces `rope_parameters`. If `rope_parameters` has entries by layer type,
        `rope_scaling` only updates the entry of `full_attention`.
        """
        scaling, parameters = (self.part(name)._data for name in _ROPES)
        near = {"rope_theta": self._data.get("rope_local_base_freq")}
        if isinstance(own := parameters.get(layer_type or ""), dict):
            far = {"rope_theta": self._data.get("rope_theta")}
            outer, inner = (near, own) if layer_type == "sliding_attention" else (far, {**own, **scaling})
            return {**outer, **{name: value for name, value in inner.items() if value is not None}}
        if layer_type == "sliding_attention":
            return near
        rope = scaling or parameters
        if any(isinstance(value, dict) for value in rope.values()):
            raise UnsupportedModel(
                f"rope_parameters or rope_scaling is {rope!r}; required: one for all layers"
            )
        trained = "original_max_position_embeddings"
        outer = {name: self._data[name] for name in ("rope_theta", trained) if self._data.get(name)}
        # As in transformers, a theta inside `rope` overrides one outside, but a length outside overrides one inside.
        inner = {name: value for name, value in rope.items() if value is not None}
        return {**outer, **inner, **{name: outer[name] for name in (trained,) if name in outer}}

    def rotated_features(self, head_dim: int, default: float) -> int:
        """Return the number of rotated features of a head. default: their share of the head if the file has none."""
        scaling, parameters = (self.part(name)._data for name in _ROPES)
        share = (scaling or parameters).get("partial_rotary_factor")
        for name in ("partial_rotary_factor", "rotary_pct"):
            share = self._data.get(name) if share is None else share
        return int(head_dim * _positive("partial_rotary_factor", default if share is None else share))

    def head_dim(self, hidden_size: int, heads: int) -> int:
        if hidden_size % heads:
            raise UnsupportedModel(f"hidden_size {hidden_size} is not divisible by {heads} attention heads")
        return hidden_size // heads

    def layer_types(self, default: list[str]) -> list[str]:
        """Return `full_attention` or `sliding_attention` for each layer. default: the types if the file has none."""
        types = self._list("layer_types", str, default)
        known = ("full_attention", "sliding_attention")
        if len(types) != len(default) or not set(types) <= set(known):
            raise UnsupportedModel(
                f"layer_types is {types!r}; required: a list of {len(default)} times {' or '.join(known)}"
            )
        return types

    def heads(self, kv_heads_name: str) -> tuple[int, int]:
        """Return the numbers of query heads and KV heads."""
        heads = self.count("num_attention_heads")
        kv_heads = self.count(kv_heads_name, heads)
        if heads % kv_heads:
            raise UnsupportedModel(f"{heads} attention heads are not divisible by {kv_heads} KV heads")
        return heads, kv_heads


def _rope_scaling(rope: dict[str, Any], dim: int, longest: int | None) -> Scaling:
    """longest: `max_position_embeddings`."""
    match rope.get("rope_type") or rope.get("type") or "default":
        case "default":
            return None
        case "linear":
            return RopeScaling("linear", _positive("factor", rope["factor"]))
        case "llama3":
            return _llama3(rope, longest)
        case "yarn":
            return _yarn(rope, longest)
        case "longrope" | "su":  # an older name
            return _long_rope(rope, dim, longest)
        case "dynamic":
            if dim == 2:
                raise UnsupportedModel("rope type 'dynamic' needs more than 2 rotary features")
            trained = Fields({"max_position_embeddings": longest}).count("max_position_embeddings")
            return DynamicRope(_positive("factor", rope["factor"]), trained)
        case kind:
            supported = "default, dynamic, linear, llama3, longrope, yarn"
            raise UnsupportedModel(f"rope type {kind!r} is not supported; supported: {supported}")


def _llama3(rope: dict[str, Any], longest: int | None) -> RopeScaling:
    """Read the parameters of Llama 3.1. As in transformers, the trained length is `longest` if the file has none."""
    names = ("low_freq_factor", "high_freq_factor")
    values: dict[str, Any] = {name: _positive(name, rope[name]) for name in names if name in rope}
    name = "original_max_position_embeddings"
    values[name] = Fields(rope).count(name, longest)
    return RopeScaling("llama3", _positive("factor", rope["factor"]), **values)


def _trained(rope: dict[str, Any], longest: int | None) -> tuple[int, float]:
    """Return the length of the trained context, and the factor that extends it."""
    trained = Fields(rope).count("original_max_position_embeddings", longest)
    stretched = None if longest is None else longest / trained
    return trained, _positive("factor", stretched if rope.get("factor") is None else rope["factor"])


def _yarn(rope: dict[str, Any], longest: int | None) -> Yarn:
    """Read YaRN parameters. Defaults are those of transformers."""
    trained, factor = _trained(rope, longest)
    if rope.get("attention_factor") is not None:
        attention_factor = _positive("attention_factor", rope["attention_factor"])
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        over, under = (_positive(name, rope[name]) for name in ("mscale", "mscale_all_dim"))
        attention_factor = _mscale(factor, over) / _mscale(factor, under)
    else:
        attention_factor = _mscale(factor, 1)
    betas = {name: _positive(name, rope[name]) for name in ("beta_fast", "beta_slow") if rope.get(name)}
    return Yarn(factor, trained, attention_factor, **betas, truncate=Fields(rope).flag("truncate", True))


def _long_rope(rope: dict[str, Any], dim: int, longest: int | None) -> LongRope:
    """Read LongRoPE parameters. Defaults are those of transformers."""
    trained, factor = _trained(rope, longest)
    attention_factor = 1.0
    if rope.get("attention_factor") is not None:
        attention_factor = _positive("attention_factor", rope["attention_factor"])
    elif factor > 1:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(max(2, trained)))
    short, long = (_factors(name, rope[name], dim // 2) for name in ("short_factor", "long_factor"))
    return LongRope(short, long, trained, attention_factor)


def _factors(name: str, values: Any, count: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != count:
        raise UnsupportedModel(f"{name} is {values!r}; required: a list of {count} numbers")
    return tuple(_positive(name, value) for value in values)


def _mscale(factor: float, mscale: float) -> float:
    """Return the attention temperature for a YaRN factor (section 3.4 of the paper)."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UnsupportedModel(f"{name} is {value!r}; required: a number above 0")
    return float(value)
