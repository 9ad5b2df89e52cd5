"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): a Llama with eight MLPs in each layer, of which a token takes two.

Each rank owns a share of every expert's middle: all ranks have the same work whatever the router chooses.
"""

from __future__ import annotations

import lmi_kernels
from engines.layers.mlp import Experts
from engines.models.blocks import Parts
from engines.models.config import ModelConfig
from engines.models.llama import Llama
from engines.models.weights import WeightSource
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch


class Mixtral(Llama):
    """One rank's part of a Mixtral model."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, comm: Communicator, stopwatch: Stopwatch
    ) -> None:
        """As `Llama`."""
        super().__init__(config, weights, comm, stopwatch, mlp=_experts)


def _experts(parts: Parts, prefix: str) -> Experts:
    config, weights, middle, block = parts.config, parts.weights, parts.middle, f"{prefix}.block_sparse_moe"
    routing = config.experts
    if routing is None:
        raise ValueError(f"{config.architecture} without experts is no Mixtral")
    experts = [f"{block}.experts.{index}" for index in range(routing.num_experts)]
    hidden, width = config.hidden_size, config.intermediate_size
    router = parts.whole_linear(f"{block}.gate", (routing.num_experts, hidden))
    # w1 is the gate, w3 what it lets through.
    names = [f"{expert}.{part}.weight" for expert in experts for part in ("w1", "w3")]
    gate_up = weights.rows(names, [middle] * len(names), (len(names) * width, hidden))
    down = weights.stacked_columns([f"{expert}.w2.weight" for expert in experts], middle, (hidden, width))
    packed = lmi_kernels.pack_experts(gate_up.view(len(experts), 2 * middle.size, hidden), down, weights.pack)
    return Experts(router, packed, routing.top_k, parts.comm)
