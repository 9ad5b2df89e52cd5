"""The shape of a model, as its config.json describes it, and the memory that it needs."""

from __future__ import annotations

from dataclasses import dataclass

from engines.models.config.attention import AttentionSpec, Rotary, default_sequence, longest_sequence
from engines.models.config.weight_names import WeightNames
from engines.partition import split_evenly, split_heads


def element_bytes(stored: str, dtype: str, native: bool) -> int:
    """Return an upper bound for the bytes per number of a matrix on a CPU, without quantization.

    stored: the checkpoint's dtype (torch's name); dtype: `option.dtype`, to which numbers are rounded; native: whether
    native kernels are used. Without them torch computes in fp32 and packs only fp16.
    """
    if dtype == "fp16" or stored == "float16":
        return 2
    return 2 if native and (dtype == "bf16" or stored == "bfloat16") else 4


def linear_bytes(outputs: float, inputs: int, element: float, int8: bool) -> float:
    """Return the bytes of a linear layer's matrix. Each row of int8 has a scale, a sum and a bias besides."""
    return outputs * (inputs + 12) if int8 else element * outputs * inputs


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Kind of a model's norms: RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) or LayerNorm."""

    eps: float
    is_layer_norm: bool = False
    """True for LayerNorm, which subtracts the mean."""
    biased: bool = False
    offset: float = 0.0
    """Number to add to the stored weights (1 for Gemma)."""


@dataclass(frozen=True, slots=True)
class PositionTable:
    """Learned position embeddings, added to the token embeddings."""

    name: str
    """Name of the tensor, without the prefix and `.weight`."""
    num_rows: int
    first: int = 0
    """Row of position 0."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Mixture of experts: each layer has several MLPs, and each token is routed to some of them."""

    num_experts: int
    top_k: int
    """Number of experts per token."""
    intermediate_size: int
    """Intermediate size of each expert."""
    router: str = "block_sparse_moe.gate"
    """Name of the router's weight in a layer."""
    expert: str = "block_sparse_moe.experts.{}"
    """Prefix of an expert's weights in a layer. `{}` is replaced by the expert's index."""
    projections: tuple[str, str, str] = ("w1", "w3", "w2")
    """Names of an expert's gate, up and down projection."""
    renormalize: bool = True
    """Whether the routing weights of a token's experts are normalized to a sum of 1."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with a dense MLP instead of experts."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model of any supported architecture. `engines/models/decoder.py` builds the model from it."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Intermediate size of the MLP."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Context length in tokens."""
    norm: NormSpec
    attention: tuple[AttentionSpec, ...]
    """Attention of each layer."""
    tie_word_embeddings: bool
    dtype: str
    """The checkpoint's dtype: `float32`, `float16` or `bfloat16`."""
    eos_token_ids: tuple[int, ...]
    names: WeightNames = WeightNames()  # noqa: RUF009  frozen
    transposed: bool = False
    """Whether weights of linear layers are stored as [inputs, outputs] (GPT-2)."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    mlp_bias: bool = False
    activation: str = "silu"
    """Activation of the MLP, as `lmi_kernels.activate` takes it."""
    gated_mlp: bool = True
    """Whether the MLP computes down(act(gate(x)) * up(x))."""
    parallel_block: bool = False
    """Whether attention and MLP run in parallel on the layer's input."""
    experts: ExpertsConfig | None = None
    position_table: PositionTable | None = None
    embedding_scale: float | None = None
    """Factor for token embeddings."""
    logit_softcap: float | None = None
    """Soft cap: logits become cap * tanh(logit / cap)."""

    @property
    def rotaries(self) -> set[Rotary]:
        """All kinds of rotary embedding in the model."""
        return {spec.rotary for spec in self.attention if spec.rotary is not None}

    @property
    def window(self) -> int | None:
        """Largest sliding window of all layers; None if a layer has no window."""
        windows = [spec.window for spec in self.attention]
        return (
            max((window for window in windows if window is not None), default=None) if all(windows) else None
        )

    @property
    def longest_sequence(self) -> int:
        """Upper limit of `option.max_model_len`. Rotary scaling may extend it beyond `max_position_embeddings`."""
        return longest_sequence(self.max_position_embeddings, (rotary.scaling for rotary in self.rotaries))

    @property
    def default_sequence(self) -> int:
        """Default of `option.max_model_len`, unless the KV cache is smaller."""
        return default_sequence(self.max_position_embeddings, (rotary.scaling for rotary in self.rotaries))

    def kv_bytes_per_token(self, stored: str, ranks: int) -> int:
        """Return the KV cache bytes per token, summed over all ranks.

        If there are more ranks than KV heads, several ranks hold copies of a head.

        stored: `fp32`, `bf16`, `fp16` or `int8`; int8 has an fp32 scale for each head.
        """
        elements = 2 * self.num_layers * self.head_dim * max(self.num_kv_heads, ranks)
        if stored == "int8":
            return elements + 4 * elements // self.head_dim
        return elements * (4 if stored == "fp32" else 2)

    def weight_bytes(self, element: float, ranks: int = 1, int8: bool = False) -> int:
        """Return the bytes of rank 0's parameters. No rank has more.

        Norms and biases of output projections are not included, because every rank holds them whole.

        element: bytes per number, on average; int8: linear layers are quantized. An embedding that is not tied, learned
            positions and routers are not.
        """
        vocabulary = split_evenly(self.vocab_size, ranks, 0).size
        rows = 0 if self.tie_word_embeddings else vocabulary
        total = linear_bytes(vocabulary, self.hidden_size, element, int8)
        for layer in range(self.num_layers):
            total += sum(
                count * linear_bytes(outputs, inputs, element, int8)
                for count, outputs, inputs in self._layer_matrices(layer, ranks)
            )
            if experts := self.experts_in(layer):
                rows += experts.num_experts
        if self.position_table is not None:
            rows += self.position_table.num_rows
        return round(total + element * rows * self.hidden_size)

    def logit_bounds_bytes(self, ranks: int = 1) -> int:
        """Return the bytes of rank 0's int8 copy of the head, which native CPU kernels keep to find the largest logit.
        Each row has two norms besides."""
        vocabulary = split_evenly(self.vocab_size, ranks, 0).size
        return round(linear_bytes(vocabulary, self.hidden_size, 1, int8=True)) + 8 * vocabulary

    def experts_in(self, layer: int) -> ExpertsConfig | None:
        """Return the experts of a layer's MLP; None if it is dense."""
        return self.experts if self.experts and layer not in self.experts.dense_layers else None

    def _layer_matrices(self, layer: int, ranks: int) -> list[tuple[int, int, int]]:
        """Return (number, outputs, inputs) of linear layers on rank 0. A sharded bias counts as one more input."""
        hidden = self.hidden_size
        share = split_heads(self.num_heads, self.num_kv_heads, ranks, 0)
        queries = share.queries.size * self.head_dim
        keys_values = 2 * share.kv_heads.size * self.head_dim
        attention = [(1, queries + keys_values, hidden + self.qkv_bias), (1, hidden, queries)]
        experts = self.experts_in(layer)
        if experts is None:
            middle = split_evenly(self.intermediate_size, ranks, 0).size
            return [
                *attention,
                (1, (2 if self.gated_mlp else 1) * middle, hidden + self.mlp_bias),
                (1, hidden, middle),
            ]
        middle = split_evenly(experts.intermediate_size, ranks, 0).size
        count = experts.num_experts
        return [*attention, (count, 2 * middle, hidden), (count, hidden, middle)]
