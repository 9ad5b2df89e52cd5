"""The shape of a model, as its config.json describes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engines.models.config.attention import AttentionSpec, DynamicRope, Rotary
from engines.models.config.fields import Fields, UnsupportedModel
from engines.partition import split_evenly, split_heads
from engines.registry import Registry

_READERS = Registry(
    {
        "FalconForCausalLM": "engines.models.config.falcon:read",
        "LlamaForCausalLM": "engines.models.config.llama:read",
        "MistralForCausalLM": "engines.models.config.llama:read_mistral",
        "MixtralForCausalLM": "engines.models.config.llama:read_mixtral",
        "Qwen2ForCausalLM": "engines.models.config.llama:read_qwen2",
        "Qwen3ForCausalLM": "engines.models.config.llama:read_qwen3",
    }
)
"""The function that reads config.json, by architecture."""


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
class ExpertsConfig:
    """A mixture of experts: several MLPs in each layer, of which each token takes some."""

    num_experts: int
    top_k: int
    """Number of experts that each token takes."""
    router: str = "block_sparse_moe.gate"
    """Name of the router's weight in a layer."""
    expert: str = "block_sparse_moe.experts.{}"
    """Prefix of an expert's weights in a layer; `{}` is its number."""
    projections: tuple[str, str, str] = ("w1", "w3", "w2")
    """Names of an expert's gate, up and down projection."""


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """Attention and MLP in parallel, both on the layer's input (Falcon)."""

    num_norms: int
    """1: both get the same normalised input; 2: each has its own norm."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model of any supported architecture."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the MLP's middle, or of each expert's."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """The longest sequence. At most the sliding window, where a layer has one: up to that length the layer attends to
    all tokens, which every backend supports."""
    norm_eps: float
    attention: tuple[AttentionSpec, ...]
    """How each layer attends."""
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    """Of the attention's output projection."""
    mlp_bias: bool
    dtype: str
    """The checkpoint's dtype: `float32`, `float16` or `bfloat16`."""
    eos_token_ids: tuple[int, ...]
    gated_mlp: bool = True
    """Whether the MLP's middle is the product of two projections."""
    experts: ExpertsConfig | None = None
    parallel_block: ParallelBlock | None = None

    @property
    def rotaries(self) -> set[Rotary]:
        """All kinds of rotary embedding in the model."""
        return {spec.rotary for spec in self.attention if spec.rotary is not None}

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
        matrices = self._layer_matrices(ranks) * self.num_layers
        return element * (sum(outputs * inputs for outputs, inputs in matrices) + tables * vocabulary)

    def _layer_matrices(self, ranks: int) -> list[tuple[int, int]]:
        """Return (outputs, inputs) of each matrix of a layer on rank 0; a split bias counts as one more input."""
        hidden = self.hidden_size
        share = split_heads(self.num_heads, self.num_kv_heads, ranks, 0)
        queries = share.queries.size * self.head_dim
        keys_values = 2 * share.keys_values.size * self.head_dim
        attention = [(queries + keys_values, hidden + self.qkv_bias), (hidden, queries)]
        middle = split_evenly(self.intermediate_size, ranks, 0).size
        mlp = [((2 if self.gated_mlp else 1) * middle, hidden + self.mlp_bias), (hidden, middle)]
        if self.experts is not None:
            mlp = [(self.experts.num_experts, hidden), *mlp * self.experts.num_experts]
        return attention + mlp

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read `path/config.json`.

        Raises:
            UnsupportedModel: no such file, not JSON, an architecture that we do not know, or a field is missing or of
                a kind that we do not know.
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
        fields = Fields(data)
        if fields.architecture not in _READERS:
            known = ", ".join(sorted(_READERS))
            raise UnsupportedModel(
                f"{file} names the architecture {fields.architecture!r}; known are {known}"
            )
        try:
            config: ModelConfig = _READERS[fields.architecture](fields)
        except KeyError as error:
            raise UnsupportedModel(f"{file} has no field {error}") from None
        return config
