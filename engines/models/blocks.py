"""Parts that models share, made from this rank's weights. Names of weights are those of Llama's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import lmi_kernels
from engines.layers.attention import SelfAttention
from engines.layers.attention_rule import AttentionRule
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.layers.mlp import GatedMlp, MoeMlp
from engines.models.config import ModelConfig
from engines.models.weights import WeightSource
from engines.parallel import Communicator
from engines.partition import HeadShare, Shard, split_evenly, split_heads
from engines.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rank's part of a model is made from.

    Methods raise `BadCheckpoint` where the weights do not match the configuration.
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
    def middle(self) -> Shard:
        """This rank's share of the MLP's middle."""
        return split_evenly(self.config.intermediate_size, self.comm.world_size, self.comm.rank)

    def attention_rule(self, layer: int, prefix: str) -> AttentionRule:
        """Make a layer's rule from its description and this rank's share. prefix: of the names of its weights."""
        share, config, spec = self.head_share, self.config, self.config.attention[layer]
        norms = slopes = None
        if spec.query_key_norms:
            # One weight for all heads, which every rank has.
            query, key = (f"{prefix}.{name}.weight" for name in ("q_norm", "k_norm"))
            shape = (config.head_dim,)
            norms = self.weights.whole(query, shape), self.weights.whole(key, shape)
        if spec.alibi_slopes is not None:
            mine = spec.alibi_slopes[share.queries.start : share.queries.stop]
            slopes = torch.tensor(mine, device=self.weights.device)
        return AttentionRule(
            spec, share.queries.size, share.keys_values.size, config.head_dim, norms, config.norm_eps, slopes
        )

    def fused_weight(
        self,
        names: Sequence[str],
        shards: Sequence[Shard],
        shape: tuple[int, int],
        biased: bool,
        gated: lmi_kernels.Activation | None = None,
    ) -> lmi_kernels.LinearWeight:
        """Fuse several projections of the same input. shape: of the fused projection over all ranks."""
        weight = self.weights.rows([f"{name}.weight" for name in names], shards, shape)
        bias = self.weights.rows([f"{name}.bias" for name in names], shards, shape[:1]) if biased else None
        return self.weights.pack(weight, bias, gated)

    def scattered_linear(
        self, name: str, pieces: Sequence[Shard], shape: tuple[int, int], biased: bool
    ) -> lmi_kernels.LinearWeight:
        """Make one projection from several ranges of a tensor's rows."""
        weight = self.weights.pieces(f"{name}.weight", pieces, shape)
        bias = self.weights.pieces(f"{name}.bias", pieces, shape[:1]) if biased else None
        return self.weights.pack(weight, bias)

    def whole_linear(self, name: str, shape: tuple[int, int]) -> lmi_kernels.LinearWeight:
        """Make a projection that every rank has, never quantised: a router with small errors chooses other experts."""
        return lmi_kernels.pack(self.weights.whole(f"{name}.weight", shape))

    def row_parallel(self, name: str, shard: Shard, inputs: int, biased: bool) -> lmi_kernels.LinearWeight:
        """Make the projection to the hidden size from `inputs` features, of which `shard` are this rank's.

        The results of all ranks are to be summed. Rank 0 alone adds a bias.
        """
        hidden = self.config.hidden_size
        weight = self.weights.columns(f"{name}.weight", shard, (hidden, inputs))
        bias = self.weights.whole(f"{name}.bias", (hidden,)) if biased else None
        return self.weights.pack(weight, bias if self.comm.rank == 0 else None)


def vocabulary(parts: Parts, embedding: str, head: str) -> tuple[VocabParallelEmbedding, VocabParallelHead]:
    """Make embedding and head from the weights with these names; from one of them where they are tied."""
    config, comm = parts.config, parts.comm
    shard = split_evenly(config.vocab_size, comm.world_size, comm.rank)
    shape = (config.vocab_size, config.hidden_size)
    table = parts.weights.rows([embedding], [shard], shape)
    tied = config.tie_word_embeddings
    packed = parts.weights.pack(table) if tied else lmi_kernels.pack(table)
    lookup = table if packed.native is None else packed
    if not tied:
        packed = parts.weights.pack(parts.weights.rows([head], [shard], shape))
    return VocabParallelEmbedding(lookup, shard, comm), VocabParallelHead(packed, config.vocab_size, comm)


def attention(parts: Parts, layer: int, prefix: str) -> SelfAttention:
    """Make a layer's attention from separate projections of queries, keys and values."""
    config, share = parts.config, parts.head_share
    q_rows, kv_rows = (heads.scaled(config.head_dim) for heads in (share.queries, share.keys_values))
    names = [f"{prefix}.{part}_proj" for part in "qkv"]
    shape = ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, config.hidden_size)
    qkv = parts.fused_weight(names, [q_rows, kv_rows, kv_rows], shape, config.qkv_bias)
    inputs = config.num_heads * config.head_dim
    output = parts.row_parallel(f"{prefix}.o_proj", q_rows, inputs, config.output_bias)
    return SelfAttention(layer, qkv, output, parts.attention_rule(layer, prefix), parts.stopwatch)


def gated_mlp(parts: Parts, prefix: str) -> GatedMlp:
    config = parts.config
    names = [f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"]
    shape = (2 * config.intermediate_size, config.hidden_size)
    gate_up = parts.fused_weight(names, [parts.middle] * 2, shape, config.mlp_bias, gated="silu")
    down = parts.row_parallel(
        f"{prefix}.mlp.down_proj", parts.middle, config.intermediate_size, config.mlp_bias
    )
    return GatedMlp(gate_up, down)


def moe_mlp(parts: Parts, prefix: str) -> MoeMlp:
    config, weights, middle, routing = parts.config, parts.weights, parts.middle, parts.config.experts
    if routing is None:
        raise ValueError(f"{config.architecture} has no experts")
    hidden, width = config.hidden_size, config.intermediate_size
    router = parts.whole_linear(f"{prefix}.{routing.router}", (routing.num_experts, hidden))
    prefixes = [f"{prefix}.{routing.expert.format(index)}" for index in range(routing.num_experts)]
    gate, up, down = routing.projections
    names = [f"{expert}.{part}.weight" for expert in prefixes for part in (gate, up)]
    gate_up = weights.rows(names, [middle] * len(names), (len(names) * width, hidden))
    downs = weights.stacked_columns([f"{each}.{down}.weight" for each in prefixes], middle, (hidden, width))
    packed = lmi_kernels.pack_experts(
        gate_up.view(len(prefixes), 2 * middle.size, hidden), downs, weights.pack
    )
    return MoeMlp(router, packed, routing.top_k)
