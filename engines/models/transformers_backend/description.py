"""The shape of a decoder that runs as a transformers module, and the reasons why some models cannot. Plain Python."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.models.config import AttentionSpec, ModelConfig, UnsupportedModel
from engines.models.config.attention import Scaling, default_sequence, longest_sequence
from engines.models.config.description import NormSpec, linear_bytes
from engines.models.config.fields import Fields, config_json
from engines.models.config.library import class_source
from engines.models.config.selection import with_architecture
from engines.models.transformers_backend.sizes import has_gate, latent_attention, read_experts
from engines.models.transformers_backend.sources import Source, causal_architectures, find_source, known_type
from engines.models.transformers_backend.split import SplitPlan, why_not_split
from engines.models.weight_files import stored_tensors
from engines.partition import split_evenly

_UNSUPPORTED_PATTERNS = (
    (r"\A(?!.*ALL_ATTENTION_FUNCTIONS)", "its code does not use transformers' attention interface"),
    (r"conv_state|recurrent", "it has recurrent layers"),
    (r"_is_stateful = True", "its cache has a state of its own"),
    (r"kv_shared", "its layers share keys and values"),
    (r"encoder_hidden_states", "its code also implements cross-attention"),
    (r"create_bidirectional_mask", "its code also implements an encoder"),
    (r"create_chunked_causal_mask", "it uses chunked attention"),
    (
        r"\n +(indices|block_indices|position_bias)=",
        "its attention has inputs other than keys, values and a window",
    ),
    (
        r"\A(?!.*\n@use_experts_implementation\nclass ).*(class \w*Experts\(|\.experts = )",
        "its experts are not implemented like those of OLMoE",
    ),
)
"""Patterns in the source of unsupported architectures, each with the reason."""
_UNSUPPORTED = {
    "CohereCompassForCausalLM": "its rotary embedding needs more than token positions",
    "DiffLlamaForCausalLM": "its layers compute attention twice",
    "DogeForCausalLM": "it uses custom attention masks",
    "HunYuanMoEV1ForCausalLM": "its code reads the weights of a linear layer directly",
    "MiMoV2FlashForCausalLM": "its layers have heads of different sizes",
    "MllamaForCausalLM": "it uses cross-attention to images",
    "MoshiForCausalLM": "it takes inputs other than text",
}
"""Unsupported architectures that no pattern finds, each with the reason."""
_OTHER_INPUTS = r"pixel_values|input_features|input_values|audio_codes"
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rope types with angles that depend only on a token's position, not on the longest sequence in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersModelConfig(ModelConfig):
    """The shape of a model that runs as a transformers module."""

    folder: Path
    plan: Mapping[str, str] | None
    """See `Source.plan`."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the tensors in the checkpoint, except those of multi-token prediction. Empty if there are no
    files."""

    scalings: tuple[Scaling, ...] = ()
    """Rotary scaling of each layer type. The module applies it itself, so `rotaries` is empty."""

    model_max_length: int = 0
    """Length for which the model was trained, if config.json has it, as those of Command-R do; else 0."""

    @property
    def longest_sequence(self) -> int:
        return max(self.model_max_length, longest_sequence(self.max_position_embeddings, self.scalings))

    @property
    def default_sequence(self) -> int:
        return max(self.model_max_length, default_sequence(self.max_position_embeddings, self.scalings))

    shared_width: int = 0
    """Width of the MLP that all tokens share, besides the experts."""

    latent: tuple[tuple[int, int, int], ...] = ()
    """(number, outputs, inputs) of the linear layers of latent attention. Empty if the model has another kind."""

    def split_plan(self, ranks: int, rank: int) -> SplitPlan:
        return SplitPlan(self.plan, self.num_heads, self.num_kv_heads, self.head_dim, ranks, rank)

    @property
    def one_rank_only(self) -> str:
        """Reason why tensor parallelism does not support the model. Empty if it does."""
        return why_not_split(self.plan)

    def weight_bytes(self, element: float, ranks: int = 1, int8: bool = False) -> int:
        """See `ModelConfig.weight_bytes`. With files the result includes what every rank holds whole.

        Without int8 it is exact, or an upper bound if the checkpoint has tensors with other names than the module.
        """
        if not self.tensors:
            return ModelConfig.weight_bytes(self, element, ranks, int8)
        split, shapes = self.split_plan(ranks, 0), dict(self.tensors)
        tables = [name for name, shape in self.tensors if len(shape) == 2 and shape[0] == self.vocab_size]
        # The embedding is one of two tables of the same shape. It is quantized only as the head.
        embedding = None if self.tie_word_embeddings else next(iter(tables), None)
        total = 0.0
        for name, shape in self.tensors:
            size, width = self._part(split, name, shapes), shape[-1] if len(shape) > 1 else 1
            quantized = int8 and len(shape) > 1 and name != embedding and not self.is_router(shape)
            total += linear_bytes(size / width, width, element, quantized)
        return round(total)

    def is_router(self, shape: tuple[int, ...]) -> bool:
        """Return whether a matrix computes the scores of the experts, or the share of one that all tokens use."""
        counts = (self.experts.num_experts, 1) if self.experts else ()
        return shape in [(count, self.hidden_size) for count in counts]

    def logit_bounds_bytes(self, ranks: int = 1) -> int:
        """Heads of transformers compute all logits."""
        return 0

    def _layer_matrices(self, layer: int, ranks: int) -> list[tuple[int, int, int]]:
        qkv, output, *mlp = ModelConfig._layer_matrices(self, layer, ranks)
        matrices = [*(self.latent or (qkv, output)), *mlp]
        if self.experts_in(layer) and self.shared_width:
            middle, hidden = split_evenly(self.shared_width, ranks, 0).size, self.hidden_size
            matrices += [(1, 2 * middle, hidden), (1, hidden, middle)]
        return matrices

    def _part(self, split: SplitPlan, name: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return how many elements of a tensor a rank holds."""
        shape, (module, _, kind) = shapes[name], name.rpartition(".")
        size = math.prod(shape)
        weight = shapes.get(f"{module}.weight", ())
        if len(weight) == 2 and weight[0] == self.vocab_size:
            return size // shape[0] * split_evenly(shape[0], split.ranks, split.rank).size
        if ".experts." in name and split.shares_experts:
            matrices = shape[0] if len(shape) > 2 else 1
            middle = size // matrices // self.hidden_size
            return size // middle * split_evenly(middle, split.ranks, split.rank).size
        if not weight or kind not in ("weight", "bias"):
            return size
        try:
            part = split.of(module, (weight[0], math.prod(weight[1:])))
        except ValueError:  # config.json says another shape, which is reported when the weights are loaded
            return size
        if part.rows:
            return size // shape[0] * sum(rows.size for rows in part.rows)
        if part.columns is not None and kind == "weight":
            return shape[0] * part.columns.size
        return size


def unsupported_reason(source: Source) -> str:
    """Return why an architecture is not supported, as far as its source shows. Empty if the source shows no reason."""
    if source.architecture in _UNSUPPORTED:
        return _UNSUPPORTED[source.architecture]
    for pattern, reason in _UNSUPPORTED_PATTERNS:
        if re.search(pattern, source.modeling, re.DOTALL):
            return reason
    own = class_source(source.modeling, source.architecture)
    return "it takes inputs other than text" if re.search(_OTHER_INPUTS, own) else ""


def describe(folder: Path) -> TransformersModelConfig:
    """Read `folder/config.json` as transformers would.

    Raises:
        UnsupportedModel: the model cannot run as a transformers module. The message says why.
    """
    data = with_architecture(config_json(folder))
    architecture, model_type = Fields(data).architecture, str(data.get("model_type"))
    if model_type == "ministral" or (model_type == "mistral" and "layer_types" in data):
        # transformers builds a Ministral from both.
        architecture, model_type = architecture.replace("Mistral", "Ministral"), "ministral"
    source = _source(architecture, model_type)
    fields = Fields(_with_common_names(data, source))
    _require_plain(architecture, data)
    try:
        return _make_config(folder, fields, source)
    except KeyError as error:
        raise UnsupportedModel(f"config.json has no field {error}") from None


def _source(architecture: str, model_type: str) -> Source:
    if architecture not in causal_architectures():
        raise UnsupportedModel(f"transformers has no causal language model {architecture}")
    source = find_source(architecture, model_type) if known_type(model_type) else None
    if source is None:
        raise UnsupportedModel(
            f"transformers does not implement {architecture} for model_type {model_type!r}"
        )
    if reason := unsupported_reason(source):
        raise UnsupportedModel(
            f"engine=MPI cannot use transformers' implementation of {architecture}: {reason}"
        )
    return source


def _with_common_names(data: Mapping[str, Any], source: Source) -> dict[str, Any]:
    known = {**source.defaults, **data}
    return known | {
        common: known[own]
        for common, own in source.other_names.items()
        if own in known and common not in data
    }


def _require_plain(architecture: str, data: Mapping[str, Any]) -> None:
    """Raise `UnsupportedModel` if config.json has unsupported quantization, layer types or rope types."""
    fields = Fields(data)
    fields.require_plain_weights()
    if len(set(map(str, data.get("num_attention_heads_per_layer") or ()))) > 1:
        raise UnsupportedModel(
            f"{architecture}: layers with different numbers of attention heads are not supported"
        )
    others = set(data.get("layer_types") or ()).difference(_LAYER_TYPES)
    if others:
        names = ", ".join(sorted(map(str, others)))
        raise UnsupportedModel(f"{architecture}: layer types {names} are not supported")
    # HunYuan's files call a fixed scaling "dynamic".
    fixed_by = "alpha" if architecture.startswith("HunYuan") else ""
    if changing := fields.rope_types(fixed_by).difference(_ROPE_TYPES):
        raise UnsupportedModel(
            f"{architecture}: rope type {changing.pop()!r} is not supported, because its angles depend on the other"
            " sequences of a batch"
        )


def _make_config(folder: Path, fields: Fields, source: Source) -> TransformersModelConfig:
    hidden_size, num_layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    heads, kv_heads = fields.heads("num_key_value_heads")
    head_dim = fields.count("head_dim", hidden_size // heads)
    if fields.is_set("kv_lora_rank"):
        # With latent attention each query head has its own keys and values.
        kv_heads, head_dim = heads, fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim")
    experts, shared_width = read_experts(fields, source, num_layers)
    return TransformersModelConfig(
        architecture=source.architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm=NormSpec(1e-6),
        attention=_attention(fields, source, num_layers, head_dim),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        gated_mlp=has_gate(source),
        experts=experts,
        shared_width=shared_width,
        latent=tuple(latent_attention(fields, heads)),
        folder=folder,
        plan=source.plan,
        tensors=tuple(
            (tensor.name, tensor.shape)
            for tensor in stored_tensors(folder)
            if not _is_unused(tensor.name, num_layers)
        ),
        scalings=tuple(fields.rope_scalings(head_dim)),
        model_max_length=fields.model_max_length,
    )


def _is_unused(name: str, num_layers: int) -> bool:
    """Return whether a tensor belongs to a layer of multi-token prediction. transformers does not load these."""
    layer = re.search(r"\blayers\.(\d+)\.", name)
    return "mtp" in name or (layer is not None and int(layer[1]) >= num_layers)


def _attention(fields: Fields, source: Source, num_layers: int, head_dim: int) -> tuple[AttentionSpec, ...]:
    """Describe scale and window of each layer. Transformers modules apply RoPE themselves."""
    wide = AttentionSpec(head_dim**-0.5, None)
    if not fields.has("sliding_window") and "config.sliding_window" in source.modeling:
        raise KeyError("sliding_window")  # only the code of transformers' config class knows the window
    used = fields.is_set("sliding_window") and "sliding_window" in source.modeling
    if not used or ("use_sliding_window" in source.defaults and not fields.flag("use_sliding_window", True)):
        return (wide,) * num_layers
    narrow = replace(wide, window=fields.count("sliding_window"))
    kinds = _layer_types(fields, source, num_layers)
    return tuple(narrow if kind == "sliding_attention" else wide for kind in kinds)


def _layer_types(fields: Fields, source: Source, num_layers: int) -> list[str]:
    sliding = ["sliding_attention"] * num_layers
    if fields.is_set("layer_types") or "layer_types" not in source.defaults:
        return fields.layer_types(sliding)
    # Older files have a pattern, or the first layer with a window. Other rules are in the code of transformers' config
    # classes.
    if pattern := fields.first_count("sliding_window_pattern", "global_attn_every_n_layers"):
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(num_layers)]
    if "use_sliding_window" in source.defaults or not fields.has("max_window_layers"):
        raise KeyError("layer_types")
    first = fields.count("max_window_layers", minimum=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
