"""Build the parts of a decoder from this rank's weights, by the tensor names in the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

import lmi_kernels
from engines.layers.attention import SelfAttention
from engines.layers.attention_params import AttentionParams
from engines.layers.embedding import Table, VocabParallelEmbedding, VocabParallelHead
from engines.layers.mlp import GatedMlp, Mlp, MoeMlp
from engines.layers.norm import Norm
from engines.models.config import ExpertsConfig, ModelConfig
from engines.models.weights import WeightSource
from engines.parallel import Communicator
from engines.partition import HeadShare, Shard, split_evenly, split_heads
from engines.stopwatch import Stopwatch

_FUSED_EXPERTS, _FUSED_ROUTER = "mlp.experts", "mlp.gate"
"""Names in the layout of transformers 5, which has two tensors for all experts of a layer."""
_HEAD = "lm_head"
"""Name of the head in the layout of transformers 5, for all architectures."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Inputs for building one rank's part of a model.

    Methods raise `BadCheckpoint` if the weights do not match the configuration.
    """

    config: ModelConfig
    weights: WeightSource
    comm: Communicator
    stopwatch: Stopwatch

    @property
    def head_share(self) -> HeadShare:
        config = self.config
        return split_heads(config.num_heads, config.num_kv_heads, self.comm.world_size, self.comm.rank)

    @property
    def activation(self) -> lmi_kernels.Activation:
        return cast(lmi_kernels.Activation, self.config.activation)

    @property
    def prefix(self) -> str:
        """Prefix of all tensor names except the head's.

        Checkpoints without a head omit the whole prefix or its first parts.
        """
        names = self.config.names
        parts = names.prefix.split(".")
        prefixes = (".".join(parts[left_out:]) for left_out in range(len(parts)))
        stored = (each for each in prefixes if self.weights.has(f"{each}{names.last_norm}.weight"))
        return next(stored, names.prefix)

    def layer_prefix(self, layer: int) -> str:
        return self.prefix + self.config.names.layer.format(layer)

    def share_of(self, middle: int) -> Shard:
        """Return this rank's shard of an MLP's intermediate features."""
        return split_evenly(middle, self.comm.world_size, self.comm.rank)

    def norm(self, *names: str) -> Norm:
        spec, shape = self.config.norm, (self.config.hidden_size,)
        affines = [
            (
                self.norm_weight(name, shape),
                self.weights.tensor(f"{name}.bias", shape) if spec.biased else None,
            )
            for name in names
        ]
        return Norm(tuple(affines), spec.eps, spec.is_layer_norm)

    def norm_weight(self, name: str, shape: tuple[int]) -> torch.Tensor:
        """Return the weight of a norm. With an offset it is in fp32, so that only the norm's result is rounded, as in
        transformers' Gemma."""
        weight, offset = self.weights.tensor(f"{name}.weight", shape), self.config.norm.offset
        return weight.float() + offset if offset else weight

    def attention_params(self, layer: int) -> AttentionParams:
        """Make a layer's parameters from its description and this rank's heads."""
        share, config, spec = self.head_share, self.config, self.config.attention[layer]
        norms = slopes = None
        if spec.query_key_norms:
            # All heads share one weight, and every rank has it.
            names = (
                self.layer_prefix(layer) + name for name in (config.names.query_norm, config.names.key_norm)
            )
            query, key = (self.norm_weight(name, (config.head_dim,)) for name in names)
            norms = query, key
        if spec.alibi_slopes is not None:
            mine = spec.alibi_slopes[share.queries.start : share.queries.stop]
            slopes = torch.tensor(mine, device=self.weights.device)
        return AttentionParams(
            spec, share.queries.size, share.kv_heads.size, config.head_dim, norms, config.norm.eps, slopes
        )

    def column_parallel(
        self,
        names: Sequence[str],
        shards: Sequence[Shard],
        shape: tuple[int, int],
        biased: bool,
        gated: lmi_kernels.Activation | None = None,
    ) -> lmi_kernels.LinearWeight:
        """Fuse rows of several projections with the same input, or several row ranges of one projection.

        names: tensor names without `.weight`, one for each shard or one for all shards.
        shape: shape of all these projections stacked, before sharding.
        gated: activation of the first half of the rows, which gates the second half. None: no gate.
        """
        if self.config.transposed:
            blocks = self._transposed(names, shards, shape)
        else:
            blocks = self.weights.row_blocks([f"{name}.weight" for name in names], shards, shape)
        bias = self.weights.rows([f"{name}.bias" for name in names], shards, shape[:1]) if biased else None
        return self.weights.pack(blocks, bias, gated)

    def row_parallel(self, name: str, shard: Shard, inputs: int, biased: bool) -> lmi_kernels.LinearWeight:
        """Make the projection from `inputs` features to the hidden size. This rank has the input features in `shard`.

        The caller sums the results over ranks. Only rank 0 adds the bias.
        """
        hidden = self.config.hidden_size
        if self.config.transposed:
            weight = self.weights.rows([f"{name}.weight"], [shard], (inputs, hidden)).t().contiguous()
        else:
            weight = self.weights.column_block(f"{name}.weight", shard, (hidden, inputs))
        bias = self.weights.tensor(f"{name}.bias", (hidden,)) if biased else None
        return self.weights.pack(weight, bias if self.comm.rank == 0 else None)

    def _transposed(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, int]
    ) -> list[torch.Tensor]:
        """Return rows of a projection that is stored transposed, as matrices to stack."""
        outputs, inputs = shape
        (name,) = names
        return [
            self.weights.columns(f"{name}.weight", shard, (inputs, outputs)).t().contiguous()
            for shard in shards
        ]


def vocabulary(parts: Parts) -> tuple[VocabParallelEmbedding, VocabParallelHead]:
    """Make the embedding and the head. Tied ones share one table."""
    config, comm, names = parts.config, parts.comm, parts.config.names
    shard = split_evenly(config.vocab_size, comm.world_size, comm.rank)
    shape = (config.vocab_size, config.hidden_size)
    embedding_name = f"{parts.prefix}{names.embedding}.weight"
    head_name = f"{_HEAD if parts.weights.has(f'{_HEAD}.weight') else names.head}.weight"

    def read(name: str) -> torch.Tensor:
        return parts.weights.row_blocks([name], [shard], shape)[0]

    tied = config.tie_word_embeddings
    table, head = (
        parts.weights.tied_rows(embedding_name, head_name, shard, shape) if tied else (None, read(head_name))
    )
    packed = parts.weights.pack(head)
    logit_bounds = lmi_kernels.make_logit_bounds(head, packed)
    if table is None:  # read while the head is packed
        table = read(embedding_name)
    packed_table = packed if head is table else lmi_kernels.pack(table)
    lookup = table if packed_table.native is None else packed_table
    norm = None if names.embedding_norm is None else parts.norm(parts.prefix + names.embedding_norm)
    scale = embedding_factor(config.embedding_scale, lookup)
    embedding = VocabParallelEmbedding(lookup, shard, comm, scale, _positions(parts), norm)
    return embedding, VocabParallelHead(packed, config.vocab_size, comm, config.logit_softcap, logit_bounds)


def embedding_factor(scale: float | None, table: Table) -> float | None:
    """Return the factor for the embeddings in a table. As in transformers, it has their dtype; native lookups return
    fp32."""
    if scale is None or not isinstance(table, torch.Tensor):
        return scale
    return torch.tensor(scale, dtype=table.dtype).item()


def _positions(parts: Parts) -> Table | None:
    spec = parts.config.position_table
    if spec is None:
        return None
    rows = Shard(spec.first, spec.first + spec.num_rows)
    shape = (rows.stop, parts.config.hidden_size)
    table = parts.weights.rows([f"{parts.prefix}{spec.name}.weight"], [rows], shape)
    packed = lmi_kernels.pack(table)
    return table if packed.native is None else packed


def attention(parts: Parts, layer: int) -> SelfAttention:
    config, share, prefix = parts.config, parts.head_share, parts.layer_prefix(layer)
    names = [prefix + name for name in config.names.qkv]
    heads = [share.queries, share.kv_heads, share.kv_heads]
    if len(names) == 1:
        make_ranges = _grouped_heads if config.names.grouped_qkv else _stacked_heads
        heads = make_ranges(config, share)
    rows = [piece.scaled(config.head_dim) for piece in heads]
    shape = ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, config.hidden_size)
    qkv = parts.column_parallel(names, rows, shape, config.qkv_bias)
    output = parts.row_parallel(
        prefix + config.names.attention_output,
        share.queries.scaled(config.head_dim),
        config.num_heads * config.head_dim,
        config.output_bias,
    )
    return SelfAttention(layer, qkv, output, parts.attention_params(layer), parts.stopwatch)


def _stacked_heads(config: ModelConfig, mine: HeadShare) -> list[Shard]:
    """Return the ranges of this rank's heads in a fused projection that is not grouped, in units of heads."""
    keys, values = config.num_heads, config.num_heads + config.num_kv_heads
    start, stop = mine.kv_heads.start, mine.kv_heads.stop
    return [mine.queries, Shard(keys + start, keys + stop), Shard(values + start, values + stop)]


def _grouped_heads(config: ModelConfig, mine: HeadShare) -> list[Shard]:
    """Return the ranges of this rank's heads in a grouped projection, in units of heads."""
    share = config.num_heads // config.num_kv_heads
    queries, keys_values = [], []
    for group in range(mine.kv_heads.start, mine.kv_heads.stop):
        first, shift = group * share, 2 * group
        start, stop = max(mine.queries.start, first), min(mine.queries.stop, first + share)
        queries.append(Shard(start + shift, stop + shift))
        keys_values.append(first + share + shift)
    keys = [Shard(at, at + 1) for at in keys_values]
    return [*queries, *keys, *[Shard(at + 1, at + 2) for at in keys_values]]


def mlp(parts: Parts, layer: int) -> GatedMlp | Mlp | MoeMlp:
    config, prefix = parts.config, parts.layer_prefix(layer)
    if experts := config.experts_in(layer):
        return _experts(parts, prefix, experts)
    names, width = [prefix + name for name in config.names.mlp_inputs], config.intermediate_size
    middle = parts.share_of(width)
    down = parts.row_parallel(prefix + config.names.mlp_output, middle, width, config.mlp_bias)
    if not config.gated_mlp:
        up = parts.column_parallel(names, [middle], (width, config.hidden_size), config.mlp_bias)
        return Mlp(up, down, parts.activation)
    ups = middle if len(names) == 2 else Shard(width + middle.start, width + middle.stop)
    shape = (2 * width, config.hidden_size)
    gate_up = parts.column_parallel(names, [middle, ups], shape, config.mlp_bias, parts.activation)
    return GatedMlp(gate_up, down)


def _experts(parts: Parts, prefix: str, spec: ExpertsConfig) -> MoeMlp:
    weights = parts.weights
    count, hidden, width = spec.num_experts, parts.config.hidden_size, spec.intermediate_size
    middle, fused = parts.share_of(width), weights.has(f"{prefix}{_FUSED_EXPERTS}.gate_up_proj")
    # Routers are never quantized, because small errors in the scores change which experts are chosen.
    router_name = f"{prefix}{_FUSED_ROUTER if fused else spec.router}.weight"
    router = lmi_kernels.pack(weights.tensor(router_name, (count, hidden)))
    if fused:
        gates_and_ups, all_downs = (f"{prefix}{_FUSED_EXPERTS}.{name}_proj" for name in ("gate_up", "down"))
        gate_up = gate_up_rows(weights.tensor(gates_and_ups, (count, 2 * width, hidden)), middle)
        downs = down_columns(weights.tensor(all_downs, (count, hidden, width)), middle)
    else:
        prefixes = [prefix + spec.expert.format(index) for index in range(count)]
        gate, up, down = spec.projections
        names = [f"{expert}.{part}.weight" for expert in prefixes for part in (gate, up)]
        rows = weights.rows(names, [middle] * len(names), (len(names) * width, hidden))
        gate_up = rows.view(count, 2 * middle.size, hidden)
        downs = weights.stacked_columns(
            [f"{each}.{down}.weight" for each in prefixes], middle, (hidden, width)
        )
    packed = lmi_kernels.pack_experts(gate_up, downs, weights.pack, parts.activation)
    return MoeMlp(router, packed, spec.top_k, spec.renormalize)


def gate_up_rows(fused: torch.Tensor, part: Shard) -> torch.Tensor:
    """Return a shard of all experts: [count, 2 * middle, hidden], gates first -> [count, 2 * part.size, hidden]."""
    count, twice, hidden = fused.shape
    halves = fused.view(count, 2, twice // 2, hidden)
    return halves[:, :, part.start : part.stop].reshape(count, -1, hidden)


def down_columns(fused: torch.Tensor, part: Shard) -> torch.Tensor:
    """Return a shard of all experts: [count, hidden, middle] -> [count, hidden, part.size]."""
    return fused[:, :, part.start : part.stop].contiguous()
