"""Build a transformers module from its config alone, and replace its linear layers, attention and weights."""

from __future__ import annotations

import threading
from typing import Any, cast

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import lmi_kernels
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.models.parts import Parts, down_columns, embedding_factor, gate_up_rows
from engines.models.tensor_files import BadCheckpoint
from engines.models.transformers_backend.decoder import TransformersDecoder
from engines.models.transformers_backend.description import TransformersModelConfig
from engines.models.transformers_backend.experts import DOWN, GATE_UP, PackedExperts, experts_activation
from engines.models.transformers_backend.linears import (
    Embedding,
    FusedLinear,
    FusedLinears,
    Head,
    PackedLinear,
    PackedMlp,
)
from engines.models.transformers_backend.paged_layer import NAME, PagedLayer, StepState
from engines.models.transformers_backend.patterns import (
    embedding_scale,
    epsilon,
    gate_activation,
    native_norm,
    rounds_before_weight,
)
from engines.models.transformers_backend.renames import stored_names
from engines.models.transformers_backend.split_norm import SplitNorm
from engines.partition import Shard, split_evenly

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of linear layers in one module that share their input."""
_GATES = (("gate_proj", "up_proj"), ("gate_up_proj",))
_DOWN = "down_proj"
"""Names of the linear layers of gated MLPs: `_GATES` has the first ones, `_DOWN` is the last."""
_HEAD_COUNTS = (
    ("num_heads", "num_attention_heads", "n_heads"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
)
"""Attributes of attention modules for the number of query heads and the number of KV heads."""
_building = threading.Lock()
"""Lock for building: accelerate patches `nn.Module.register_parameter`, and tests run several ranks in one process."""


def build(parts: Parts) -> TransformersDecoder:
    """Build this rank's part of the model that `parts.config`, a `TransformersModelConfig`, describes.

    Raises:
        BadCheckpoint: a weight is missing or has another shape.
    """
    config = parts.config
    if not isinstance(config, TransformersModelConfig):
        raise TypeError("a module of transformers needs its own description")
    with _building:
        module = _empty_module(config)
    _Builder(parts, config, module).fill()
    module.to(parts.weights.device)  # moves the buffers; parameters are already there
    step_state = StepState()
    _attach_layers(module, parts, config, step_state)
    return TransformersDecoder(module, step_state, parts.comm.rank == 0)


def _empty_module(config: TransformersModelConfig) -> Any:
    """Build the module with real buffers and without parameters."""
    described = AutoConfig.from_pretrained(config.folder)
    with init_empty_weights(include_buffers=False):
        module = AutoModelForCausalLM.from_config(described, attn_implementation=NAME, dtype=torch.float32)
    if type(module).__name__ != config.architecture:
        raise BadCheckpoint(f"config.json names {config.architecture}, its type {type(module).__name__}")
    return module.eval()


class _Builder:
    """Fills one rank's module with weights. Each weight is read by its name in the module."""

    def __init__(self, parts: Parts, config: TransformersModelConfig, module: Any) -> None:
        self._weights = parts.weights
        self._comm = parts.comm
        self._config = config
        self._module = module
        self._split = config.split_plan(parts.comm.world_size, parts.comm.rank)
        self._stored = stored_names(module, (name for name, _ in config.tensors))
        self._norm_widths: dict[str, int] = {}
        """Number of features, over all ranks, of each sharded norm, by module path."""

    def fill(self) -> None:
        self._vocabulary()
        for path, owner in list(self._module.named_modules()):
            if (mlp := self._gated_mlp(path, owner) or self._experts(path, owner)) is not None:
                self._set(path, mlp)
            else:
                self._linears(path, owner)
        for name, parameter in list(self._module.named_parameters()):
            owner, leaf = self._owner(name)
            # `setattr` would register the parameter, while another rank may be inside `init_empty_weights`.
            owner._parameters[leaf] = nn.Parameter(self._read_tensor(name, parameter), requires_grad=False)
        stored = self._module.state_dict().keys()
        for name, buffer in list(self._module.named_buffers()):
            # A buffer without dimensions is a constant of the module's code.
            if buffer.dim() and name in stored and self._weights.has(self._name(name)):
                self._set(name, self._read_tensor(name, buffer))
        for path, owner in list(self._module.named_modules()):
            if (norm := self._split_norm(path, owner) or native_norm(owner)) is not None:
                self._set(path, norm)

    def _vocabulary(self) -> None:
        paths = {id(each): path for path, each in self._module.named_modules()}
        inputs, outputs = self._module.get_input_embeddings(), self._module.get_output_embeddings()
        rows, width = inputs.weight.shape
        shard = split_evenly(rows, self._comm.world_size, self._comm.rank)
        source, target = paths[id(inputs)], paths[id(outputs)]
        bias = None
        if getattr(outputs, "bias", None) is not None:
            bias = self._weights.rows([self._name(f"{target}.bias")], [shard], (rows,))
        stored, shape = (self._name(f"{source}.weight"), self._name(f"{target}.weight")), (rows, width)
        scale = embedding_scale(inputs)
        table: torch.Tensor | None
        if self._config.tie_word_embeddings:
            table, head = self._weights.tied_rows(*stored, shard, shape)
        else:
            table = self._weights.row_blocks(stored[:1], [shard], shape)[0] if scale is not None else None
            head = self._weights.row_blocks(stored[1:], [shard], shape)[0]
        packed = self._weights.pack(head, bias)
        self._set(target, Head(VocabParallelHead(packed, rows, self._comm)))
        if scale is not None and table is not None:
            lookup: Any = packed if head is table else lmi_kernels.pack(table)
            lookup = table if lookup.native is None else lookup
            factor = None if scale == 1.0 else embedding_factor(scale, lookup)
            self._set(source, Embedding(VocabParallelEmbedding(lookup, shard, self._comm, factor)))

    def _gated_mlp(self, path: str, owner: nn.Module) -> PackedMlp | None:
        """Make the replacement of a gated MLP. Return None for other modules."""
        plain = {name: child for name, child in owner.named_children() if type(child) is nn.Linear}
        for names in _GATES:
            down = plain.get(_DOWN)
            if down is None or set(plain) != {*names, _DOWN}:
                continue
            linears = [plain[name] for name in names]
            shape = sum(each.out_features for each in linears), down.out_features
            biased = {each.bias is not None for each in linears}
            widths = (shape[1], shape[0] // 2)
            activation = gate_activation(owner, names, _DOWN, widths) if len(biased) == 1 else None
            if activation is None:
                continue
            paths = [f"{path}.{name}" for name in names]
            weight, bias = self._rows_of(paths, linears, shape, biased.pop())
            packed = self._weights.pack(weight, bias, activation)
            return PackedMlp(packed, self._linear(f"{path}.{_DOWN}", down))
        return None

    def _experts(self, path: str, owner: Any) -> PackedExperts | None:
        """Make the replacement of a module of experts. Return None for other modules."""
        activation = experts_activation(owner)
        if activation is None:
            return None
        count, hidden, middle = owner.down_proj.shape
        part = self._split.of(f"{path}.{DOWN}", (hidden, middle)).columns
        gate_up, down = self._read_experts(path, count, hidden, middle, part or Shard(0, middle))
        packed = lmi_kernels.pack_experts(gate_up, down, self._weights.pack, activation)
        return PackedExperts(packed, count, self._comm if part else None)

    def _read_experts(
        self, path: str, count: int, hidden: int, middle: int, part: Shard
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read this rank's shard of each expert: gates and ups, [count, 2 * part, hidden], and downs, [count, hidden,
        part]. A tensor that holds gates and ups, or all experts, is read whole."""
        names = self._stored.get(f"{path}.{GATE_UP}", ())
        if len(names) == 2 * count:
            read = self._weights.rows(names, [part] * len(names), (len(names) * middle, hidden))
            gate_up = read.view(count, -1, hidden)
        else:
            gate_up = gate_up_rows(self._stack(f"{path}.{GATE_UP}", (count, 2 * middle, hidden)), part)
        names = self._stored.get(f"{path}.{DOWN}", ())
        if len(names) == count:
            return gate_up, self._weights.stacked_columns(names, part, (hidden, middle))
        return gate_up, down_columns(self._stack(f"{path}.{DOWN}", (count, hidden, middle)), part)

    def _stack(self, name: str, shape: tuple[int, int, int]) -> torch.Tensor:
        """Read a tensor of all experts. The checkpoint may store it in parts."""
        (count, height, width), names = shape, self._stored.get(name, ())
        if len(names) < 2:
            return self._weights.tensor(self._name(name), shape)
        part = Shard(0, count * height // len(names))
        stacked = self._weights.rows(names, [part] * len(names), (count * height, width))
        return stacked.view(shape)

    def _linears(self, path: str, owner: nn.Module) -> None:
        """Replace the linear layers of one module."""
        plain = {name: child for name, child in owner.named_children() if type(child) is nn.Linear}
        for names in _FUSED:
            group = [plain[name] for name in names if name in plain]
            biased = {each.bias is not None for each in group}
            inputs = {each.in_features for each in group}
            if len(group) == len(names) and len(biased) == len(inputs) == 1:
                self._fuse(owner, [f"{path}.{name}" for name in names], group)
                plain = {name: child for name, child in plain.items() if name not in names}
        for name, child in plain.items():
            setattr(owner, name, self._linear(f"{path}.{name}" if path else name, child))

    def _fuse(self, owner: nn.Module, paths: list[str], linears: list[nn.Linear]) -> None:
        shape = sum(each.out_features for each in linears), linears[0].in_features
        packed = self._weights.pack(*self._rows_of(paths, linears, shape, linears[0].bias is not None))
        widths = [
            sum(rows.size for rows in self._ranges(path, linear))
            for path, linear in zip(paths, linears, strict=True)
        ]
        fused = FusedLinears(packed, widths)
        for index, path in enumerate(paths):
            setattr(owner, path.rpartition(".")[2], FusedLinear(fused, index))

    def _rows_of(
        self, paths: list[str], linears: list[nn.Linear], shape: tuple[int, int], biased: bool
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Read this rank's rows of several linear layers, as matrices to stack, and their biases, stacked.

        shape: shape of all the weights, stacked.
        """
        ranges = [self._ranges(path, linear) for path, linear in zip(paths, linears, strict=True)]
        rows = list(ranges[0]) if len(paths) == 1 else [each for (each,) in ranges]
        weights, biases = ([self._name(f"{path}.{kind}") for path in paths] for kind in ("weight", "bias"))
        blocks = self._weights.row_blocks(weights, rows, shape)
        return blocks, self._weights.rows(biases, rows, shape[:1]) if biased else None

    def _linear(self, path: str, linear: nn.Linear) -> PackedLinear:
        shape, biased = (linear.out_features, linear.in_features), linear.bias is not None
        split = self._split.of(path, shape)
        if split.columns is None:
            # Routers are never quantized, because small errors in the scores change which experts are chosen.
            pack = lmi_kernels.pack if self._config.is_router(shape) else self._weights.pack
            return PackedLinear(pack(*self._rows_of([path], [linear], shape, biased)))
        weight = self._weights.column_block(self._name(f"{path}.weight"), split.columns, shape)
        bias = self._weights.tensor(self._name(f"{path}.bias"), shape[:1]) if biased else None
        # Only rank 0 adds a bias to the sum.
        return PackedLinear(self._weights.pack(weight, bias if self._comm.rank == 0 else None), self._comm)

    def _split_norm(self, path: str, norm: nn.Module) -> SplitNorm | None:
        """Make the replacement of a norm with features that are sharded over ranks. Return None for other modules."""
        width = self._norm_widths.get(path)
        if width is None:
            return None
        (rows,), before = self._split.of(path, (width, 1)).rows, 0
        if self._comm.rank > 0:
            others = self._config.split_plan(self._comm.world_size, self._comm.rank - 1)
            before = others.of(path, (width, 1)).rows[0].stop
        # If several ranks have the same KV head, only the first of them counts its features.
        return SplitNorm(
            cast(torch.Tensor, norm.weight),
            cast(float, epsilon(norm)),
            width,
            max(before - rows.start, 0),
            self._comm,
            rounds_before_weight(norm),
        )

    def _ranges(self, path: str, linear: nn.Linear) -> tuple[Shard, ...]:
        """Return this rank's ranges of a linear layer's outputs."""
        split = self._split.of(path, (linear.out_features, linear.in_features))
        return split.rows or (Shard(0, linear.out_features),)

    def _read_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Read a tensor that belongs to no linear layer. Every rank has all of it, except of norms over all heads and
        norms with a weight for each head."""
        shape, heads = tuple(tensor.shape), Shard(0, tensor.shape[0])
        share, config, path = self._split.head_share, self._config, name.rpartition(".")[0]
        if (rows := self._split.of(path, (shape[0], 1)).rows) and len(shape) == 1:
            self._norm_widths[path] = shape[0]
            (heads,) = rows
        if shape == (config.num_kv_heads, config.head_dim):
            heads = share.kv_heads
        if shape == (config.num_heads, config.head_dim):
            heads = share.queries
        # Rounding these would change, for example, which experts are chosen.
        exact = any(part in name for part in self._module._keep_in_fp32_modules_strict or ())
        found = self._weights.rows([self._name(name)], [heads], shape, exact)
        # On a CPU everything except linear layers is computed in fp32.
        return found.float() if found.device.type == "cpu" else found

    def _name(self, name: str) -> str:
        """Return a tensor's name in the checkpoint."""
        return self._stored.get(name, (name,))[0]

    def _set(self, path: str, value: Any) -> None:
        owner, name = self._owner(path)
        setattr(owner, name, value)

    def _owner(self, path: str) -> tuple[nn.Module, str]:
        """Split a path into the parent module and the name in it."""
        owner, _, name = path.rpartition(".")
        return self._module.get_submodule(owner), name


def _attach_layers(
    module: nn.Module, parts: Parts, config: TransformersModelConfig, step_state: StepState
) -> None:
    """Attach each attention module to its layer of the KV cache, by the module's `layer_idx`."""
    share = config.split_plan(parts.comm.world_size, parts.comm.rank).head_share
    counts = share.queries.size, share.kv_heads.size
    layers = [
        PagedLayer(index, *counts, config.head_dim, spec.window, step_state, parts.stopwatch)
        for index, spec in enumerate(config.attention)
    ]
    for owner in module.modules():
        index = getattr(owner, "layer_idx", None)
        if isinstance(index, int) and index < len(layers):
            layers[index].attach(owner)
            for names, count in zip(_HEAD_COUNTS, counts, strict=True):
                for name in names:
                    if isinstance(getattr(owner, name, None), int):
                        setattr(owner, name, count)
