"""The shape of a model, as its config.json describes it."""

from __future__ import annotations

from dataclasses import dataclass

from engines.models.config.attention import AttentionSpec, DynamicRope, Rotary
from engines.models.config.weight_names import WeightNames
from engines.partition import split_evenly, split_heads


def element_bytes(stored: str, dtype: str, quantize: str, native: bool) -> int:
    """Return the bytes of each number of a matrix on a CPU, at most.

    stored: the checkpoint's dtype in torch's words; dtype: `option.dtype`, to which numbers are rounded; native:
    whether native kernels serve; torch computes in fp32, and packs only fp16.
    """
    if quantize == "int8":
        return 1
    if dtype == "fp16" or stored == "float16":
        return 2
    return 2 if native and (dtype == "bf16" or stored == "bfloat16") else 4


@dataclass(frozen=True, slots=True)
class NormSpec:
    """The norms of a model: RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), or LayerNorm."""

    eps: float
    centred: bool = False
    """LayerNorm: the mean is subtracted."""
    biased: bool = False
    offset: float = 0.0
    """Added to the weights (Gemma stores them less 1)."""


@dataclass(frozen=True, slots=True)
class PositionTable:
    """Learned positions: a row of a table is added to each token's embedding."""

    name: str
    """Of the tensor, without `.weight` and the prefix."""
    num_rows: int
    first: int = 0
    """The row of position 0."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: several MLPs in each layer, of which each token takes some."""

    num_experts: int
    top_k: int
    """Number of experts that each token takes."""
    intermediate_size: int
    """Width of an expert's middle."""
    router: str = "block_sparse_moe.gate"
    """Name of the router's weight in a layer."""
    expert: str = "block_sparse_moe.experts.{}"
    """Prefix of an expert's weights in a layer; `{}` is its number."""
    projections: tuple[str, str, str] = ("w1", "w3", "w2")
    """Names of an expert's gate, up and down projection."""
    renormalise: bool = True
    """Whether the shares of a token's experts add up to 1."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with one MLP instead."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model of any supported architecture. `engines/models/decoder.py` builds the model from it."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the MLP's middle."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """The longest sequence."""
    norm: NormSpec
    attention: tuple[AttentionSpec, ...]
    """How each layer attends."""
    tie_word_embeddings: bool
    dtype: str
    """The checkpoint's dtype: `float32`, `float16` or `bfloat16`."""
    eos_token_ids: tuple[int, ...]
    names: WeightNames = WeightNames()  # noqa: RUF009  frozen
    transposed: bool = False
    """Whether linears are stored as [inputs, outputs] (GPT-2)."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Of the attention's output projection."""
    mlp_bias: bool = False
    activation: str = "silu"
    """Of the MLP, as `lmi_kernels.activate` takes it."""
    gated_mlp: bool = True
    """Whether the MLP's middle is act(gate) * up."""
    parallel_block: bool = False
    """Whether attention and MLP both start from the layer's input."""
    experts: ExpertsConfig | None = None
    position_table: PositionTable | None = None
    embedding_scale: float | None = None
    """Embeddings are multiplied by it."""
    logit_softcap: float | None = None
    """Logits become cap * tanh(logit / cap)."""

    @property
    def rotaries(self) -> set[Rotary]:
        """All kinds of rotary embedding in the model."""
        return {spec.rotary for spec in self.attention if spec.rotary is not None}

    @property
    def window(self) -> int | None:
        """Latest tokens that a token sees in the layer that sees the most; None: in some layer all."""
        windows = [spec.window for spec in self.attention]
        return (
            max((window for window in windows if window is not None), default=None) if all(windows) else None
        )

    @property
    def longest_sequence(self) -> int:
        """What `option.max_model_len` may be at most: more than the model's context with dynamic rotary scaling."""
        factors = [r.scaling.factor for r in self.rotaries if isinstance(r.scaling, DynamicRope)]
        return int(self.max_position_embeddings * max([1.0, *factors]))

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers in the KV cache for one token, over all layers and heads."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, stored: str, ranks: int) -> int:
        """Return the bytes that the KV cache takes for one token, over all ranks together.

        Ranks beyond the number of KV heads hold copies of some heads.

        stored: `fp32`, `bf16`, `fp16` or `int8`; int8 has an fp32 scale for each head.
        """
        elements = self.kv_elements_per_token // self.num_kv_heads * max(self.num_kv_heads, ranks)
        if stored == "int8":
            return elements + 4 * elements // self.head_dim
        return elements * (4 if stored == "fp32" else 2)

    def weight_bytes(self, element: int, ranks: int = 1) -> int:
        """Return the bytes of rank 0's parameters, which no rank exceeds, without what every rank holds whole:
        norms, and biases of output projections.

        element: bytes of each number.
        """
        vocabulary = split_evenly(self.vocab_size, ranks, 0).size * self.hidden_size
        tables = 1 if self.tie_word_embeddings else 2
        total = tables * vocabulary
        for layer in range(self.num_layers):
            total += sum(outputs * inputs for outputs, inputs in self._layer_matrices(layer, ranks))
        if self.position_table is not None:
            total += self.position_table.num_rows * self.hidden_size
        return element * total

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers

    def _layer_matrices(self, layer: int, ranks: int) -> list[tuple[int, int]]:
        """Return (outputs, inputs) of each matrix of a layer on rank 0; a split bias counts as one more input."""
        hidden = self.hidden_size
        share = split_heads(self.num_heads, self.num_kv_heads, ranks, 0)
        queries = share.queries.size * self.head_dim
        keys_values = 2 * share.keys_values.size * self.head_dim
        attention = [(queries + keys_values, hidden + self.qkv_bias), (hidden, queries)]
        if self.experts is None or not self.has_experts(layer):
            middle = split_evenly(self.intermediate_size, ranks, 0).size
            return [
                *attention,
                ((2 if self.gated_mlp else 1) * middle, hidden + self.mlp_bias),
                (hidden, middle),
            ]
        middle = split_evenly(self.experts.intermediate_size, ranks, 0).size
        expert = [(2 * middle, hidden), (hidden, middle)]
        return [*attention, (self.experts.num_experts, hidden), *expert * self.experts.num_experts]
