"""Decoder layers with attention and MLP in sequence or in parallel. See `decoder.Layer`.

Each rank owns whole groups of query heads with their KV head, and a shard of the MLP's intermediate features.
"""

from __future__ import annotations

import torch

from engines.kv_cache import KvCache
from engines.layers.collectives import all_reduce
from engines.layers.norm import Norm
from engines.layers.step_attention import StepAttention
from engines.models import parts as make
from engines.models.parts import Parts


class SequentialLayer:
    """Attention followed by the MLP, with two all-reduces. Gemma 2 and 3 also normalize both outputs."""

    def __init__(self, parts: Parts, index: int) -> None:
        names, prefix = parts.config.names, parts.layer_prefix(index)
        self._comm = parts.comm
        self._attention_norm = parts.norm(prefix + names.attention_norm)
        self._attention = make.attention(parts, index)
        self._attention_output_norm = _norm(parts, prefix, names.attention_output_norm)
        self._mlp_norm = parts.norm(f"{prefix}{names.mlp_norm}")
        self._mlp = make.mlp(parts, index)
        self._mlp_output_norm = _norm(parts, prefix, names.mlp_output_norm)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (x,), residual = self._attention_norm.add(x, residual)
        rows = self._attention.wanted_rows(cache, step)
        residual, slots = _select(residual, rows), _slots(step, rows)
        x = all_reduce(self._attention(x, cache, step), self._comm)
        if self._attention_output_norm is not None:
            x = self._attention_output_norm(x)
        (x,), residual = self._mlp_norm.add(x, residual)
        x = all_reduce(self._mlp(x, slots), self._comm)
        if self._mlp_output_norm is not None:
            x = self._mlp_output_norm(x)
        return x, residual


class ParallelLayer:
    """Attention and MLP in parallel, with one all-reduce. They share one input norm or have one each."""

    def __init__(self, parts: Parts, index: int) -> None:
        names, prefix = parts.config.names, parts.layer_prefix(index)
        norms = [prefix + name for name in (names.attention_norm, names.mlp_norm) if name is not None]
        self._comm = parts.comm
        self._norms = parts.norm(*norms)
        self._attention = make.attention(parts, index)
        self._mlp = make.mlp(parts, index)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, residual = self._norms.add(x, residual)
        rows = self._attention.wanted_rows(cache, step)
        residual, slots = _select(residual, rows), _slots(step, rows)
        out = self._mlp(_select(inputs[-1], rows), slots)
        out = self._attention(inputs[0], cache, step, add_to=out)
        return all_reduce(out, self._comm), residual


def _select(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return x if rows is None else x[rows]


def _slots(step: StepAttention, rows: torch.Tensor | None) -> torch.Tensor | None:
    return None if step.slot_mapping is None else _select(step.slot_mapping, rows)


def _norm(parts: Parts, prefix: str, name: str | None) -> Norm | None:
    return None if name is None else parts.norm(prefix + name)
