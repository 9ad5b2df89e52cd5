"""What an architecture needs to know of a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engines.models.config.fields import Fields, RopeScaling, UnsupportedModel
from engines.partition import split_evenly, split_heads
from engines.registry import Registry

_READERS = Registry(
    {
        "FalconForCausalLM": "engines.models.config.falcon:read",
        "LlamaForCausalLM": "engines.models.config.llama:read",
        "MistralForCausalLM": "engines.models.config.llama:read_windowed",
        "MixtralForCausalLM": "engines.models.config.mixtral:read",
        "Qwen3ForCausalLM": "engines.models.config.qwen3:read",
    }
)
"""What reads the fields of whose config.json."""
_PACKED = 512
"""Packing for a CPU rounds the inputs of a matrix up to whole blocks of so many."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Several MLPs in each layer, of which a token takes some."""

    num_experts: int
    top_k: int
    """How many a token takes."""


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """Attention and MLP beside each other, both on the layer's input (Falcon)."""

    num_norms: int
    """1: they see the same normalised input; 2: each has a norm of its own."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's shape: what all architectures have, and what some do."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """The MLP's middle, or each expert's."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """The longest sequence. Where attention looks back through a window, no more than the window: up to there it is
    attention over everything, which is what we compute."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    """As the checkpoint names it: `float32`, `float16`, `bfloat16`."""
    eos_token_ids: tuple[int, ...]
    gated_mlp: bool = True
    """The MLP's middle is the product of two projections; else there is one."""
    experts: ExpertsConfig | None = None
    parallel_block: ParallelBlock | None = None

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that the KV cache holds for one token, over all layers and heads, each head held once."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def kv_elements_on(self, ranks: int) -> int:
        """Likewise, on so many ranks together: where they are more than KV heads, some heads are held several times."""
        return self.kv_elements_per_token // self.num_kv_heads * max(self.num_kv_heads, ranks)

    def kv_bytes_per_token(self, stored: str, ranks: int) -> int:
        """What the KV cache takes for one token on so many ranks together.

        stored: `fp32`, `bf16`, `fp16` or `int8`; with int8 each head has an fp32 scale.
        """
        elements = self.kv_elements_on(ranks)
        if stored == "int8":
            return elements + 4 * elements // self.head_dim
        return elements * (4 if stored == "fp32" else 2)

    def weight_bytes(self, element: int | None, ranks: int = 1) -> int:
        """What the parameters of rank 0, which no rank exceeds, should take in memory, norms and biases left out.

        element: bytes of each number; None: as on a CPU that packs matrices as fp16 (`cpu_element`), and looks
        embeddings up in fp32.
        """
        vocabulary = split_evenly(self.vocab_size, ranks, 0).size
        matrices = [*self._layer_matrices(ranks) * self.num_layers, (vocabulary, self.hidden_size)]
        if element is not None:
            lookup = 0 if self.tie_word_embeddings else vocabulary * self.hidden_size
            return element * (sum(outputs * inputs for outputs, inputs in matrices) + lookup)
        lookup = 4 * vocabulary * self.hidden_size
        return 2 * sum(outputs * -(-inputs // _PACKED) * _PACKED for outputs, inputs in matrices) + lookup

    def _layer_matrices(self, ranks: int) -> list[tuple[int, int]]:
        """(outputs, inputs) of what a layer multiplies with on rank 0."""
        hidden = self.hidden_size
        share = split_heads(self.num_heads, self.num_kv_heads, ranks, 0)
        queries = share.queries.size * self.head_dim
        attention = [(queries + 2 * share.keys_values.size * self.head_dim, hidden), (hidden, queries)]
        middle = split_evenly(self.intermediate_size, ranks, 0).size
        mlp = [((2 if self.gated_mlp else 1) * middle, hidden), (hidden, middle)]
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
