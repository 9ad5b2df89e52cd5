"""Attention of transformers modules over the engine's KV cache, through transformers' attention interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from engines.kv_cache import KvCache
from engines.layers.attention_params import AttentionParams
from engines.layers.native_step_attention import NativeStepAttention
from engines.layers.step_attention import StepAttention
from engines.models.config import AttentionSpec
from engines.models.transformers_backend.late_rotary import LateRotary, StepAngles, UnsupportedAttention
from engines.stopwatch import Stopwatch

NAME = "lmi"
"""Value of `attn_implementation` for this module. It has no mask function, so transformers makes no masks."""
_IN_MASKS = 0
"""Default of `sliding_window`. Modules that do not pass their window apply it only in masks."""
_IGNORED_ARGUMENTS = frozenset(
    (
        *("dropout", "position_ids", "cache_position", "output_attentions", "output_hidden_states"),
        *("use_cache", "return_dict", "is_causal", "position_embeddings", "layer_idx"),
    )
)
"""Arguments to ignore. They change nothing, because steps have no padding and the engine knows the sequences."""
_ATTRIBUTE = "lmi_layer"


@dataclass(slots=True)
class StepState:
    """State of the current step, shared by all layers of a model."""

    step: StepAttention | None = None
    cache: KvCache | None = None
    calls: set[int] = field(default_factory=set)
    """Indices of the layers that have attended."""
    angles: StepAngles = field(default_factory=StepAngles)

    def begin(self, step: StepAttention, cache: KvCache) -> None:
        self.step, self.cache = step, cache
        self.calls.clear()
        self.angles.begin(step)

    def end(self, num_layers: int) -> None:
        """End the step. Raises `UnsupportedAttention` if a layer did not attend."""
        self.step = self.cache = None
        if self.calls != set(range(num_layers)):
            raise UnsupportedAttention(f"only {len(self.calls)} of {num_layers} layers compute attention")


@dataclass(slots=True)
class PagedLayer:
    """KV cache and attention of one layer, for this rank's heads."""

    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    """Window in the model's description. The cache may have dropped earlier tokens."""
    step_state: StepState
    stopwatch: Stopwatch
    params: AttentionParams | None = None
    arguments: tuple[Any, ...] = ()
    """Arguments of the module's call that `params` was made for."""
    rotary: LateRotary | None = None

    def attach(self, module: torch.nn.Module) -> None:
        """Make an attention module use this layer."""
        setattr(module, _ATTRIBUTE, self)
        self.rotary = LateRotary.replace_in(module, self.step_state.angles) or self.rotary

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend over the cache.

        query, key, value: [1, heads, num_tokens, head_dim] -> [1, num_tokens, num_heads, value's head_dim].
        """
        step, cache, params = self.step_state.step, self.step_state.cache, self.params
        if step is None or cache is None or params is None:
            raise UnsupportedAttention("attention outside of a step")
        if self.index in self.step_state.calls:
            raise UnsupportedAttention(f"layer {self.index} computes attention twice in a step")
        self.step_state.calls.add(self.index)
        width, num_tokens = value.shape[-1], query.shape[2]
        if width < self.head_dim:
            value = F.pad(value, (0, self.head_dim - width))
        for part, heads in ((query, self.num_heads), (key, self.num_kv_heads), (value, self.num_kv_heads)):
            if part.shape != (1, heads, num_tokens, self.head_dim):
                wanted = (1, heads, num_tokens, self.head_dim)
                raise UnsupportedAttention(
                    f"layer {self.index} attends with {tuple(part.shape)}, config.json says {wanted}"
                )
        angles = None
        if self.rotary is not None:
            query, key, angles = self.rotary.unrotated(query, key)
        qkv, pool = _join_qkv(query, key, value), cache.layers[self.index]
        self.stopwatch.start()
        if angles is not None and isinstance(step, NativeStepAttention):
            out = step.attend(qkv, params, pool, angles)
        else:
            out = step.attend(qkv, params, pool)
        self.stopwatch.stop("attention")
        return out.view(1, num_tokens, self.num_heads, self.head_dim)[..., :width]

    def make_params(self, spec: AttentionSpec, sinks: torch.Tensor | None) -> AttentionParams:
        if spec.window != self.window:
            raise UnsupportedAttention(
                f"layer {self.index} has a window of {spec.window}, config.json says {self.window}"
            )
        sinks = None if sinks is None else sinks.detach().float().contiguous()
        return AttentionParams(spec, self.num_heads, self.num_kv_heads, self.head_dim, sinks=sinks)


def _join_qkv(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Join [1, heads, num_tokens, head_dim] each to [num_tokens, all heads * head_dim], without a copy if they are
    views of one projection's result."""
    (_, heads, num_tokens, head_dim), kv_heads = query.shape, key.shape[1]
    width, first, size = (heads + 2 * kv_heads) * head_dim, query.data_ptr(), query.element_size()
    strides = query.stride()
    if (
        strides[1:] == (head_dim, width, 1)
        and key.stride() == value.stride() == strides
        and key.data_ptr() == first + heads * head_dim * size
        and value.data_ptr() == first + (heads + kv_heads) * head_dim * size
        and query.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    ):
        return query.as_strided((num_tokens, width), (width, 1))
    parts = (part[0].transpose(0, 1) for part in (query, key, value))
    return torch.cat(tuple(parts), 1).view(num_tokens, -1)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = _IN_MASKS,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Implement transformers' attention interface. Raises `UnsupportedAttention`."""
    layer: PagedLayer | None = getattr(module, _ATTRIBUTE, None)
    unknown = [name for name, what in others.items() if name not in _IGNORED_ARGUMENTS and what is not None]
    if layer is None or attention_mask is not None or unknown or others.get("is_causal") is False:
        what = f" ({', '.join(unknown)})" if unknown else ""
        raise UnsupportedAttention(
            f"{type(module).__name__} attends to something other than the previous tokens of a sequence{what}"
        )
    window = layer.window if sliding_window == _IN_MASKS else sliding_window
    arguments = scaling, window, softcap, s_aux is None
    if layer.arguments != arguments:
        scale = layer.head_dim**-0.5 if scaling is None else float(scaling)
        spec = AttentionSpec(scale, None, window=window, softcap=softcap, sinks=s_aux is not None)
        layer.params, layer.arguments = layer.make_params(spec, s_aux), arguments
    return layer.attend(query, key, value), None


AttentionInterface.register(NAME, _attention)
