"""Step times from data sheets: bytes against bandwidth, products against their rate, launches, sums over ranks.

Nothing here is fitted to the result of a server. The shares of the data sheets' figures that kernels reach are those
that others have published: docs/simulating.md names the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from container.explain.hardware import CPU, Device, device
from container.explain.target import ServingTarget
from container.measure.simulate.server import SimulatedServer
from container.measure.simulate.step_times import StepSeconds
from engines.config import MpiEngineConfig
from engines.models.config import ModelConfig, element_bytes
from engines.partition import split_evenly, split_heads

_WEIGHT_BANDWIDTH = 0.75
"""Of the bandwidth, where weights are read."""
_KV_BANDWIDTH = 0.85
"""Of the bandwidth, where keys and values are read."""
_MATMUL_RATE = 0.7
"""Of the rate of products, in linears of many rows."""
_ATTENTION_RATE = 0.45
"""Of the rate of products, in the attention of prompts."""
_LINK_BANDWIDTH = 0.75
"""Of a link, in sums over ranks."""
_FAST_LINK = 100e9
"""Bytes a second: from here on a link is NVLink or its like, below PCIe."""
_HOP_SECONDS = {True: 1e-6, False: 3e-6}
"""Of a sum, for each of its 2 (ranks - 1) hops: on a fast link or not."""
_KERNELS = {"MPI": 10, "Python": 33}
"""In a layer: fused ones of engine=MPI, and those of an eager layer of transformers."""
_LAUNCH_SECONDS = 5e-6
"""Of the host, for each kernel that is not in a CUDA graph."""
_GAP_SECONDS = {True: 5e-6, False: 2e-6}
"""Of the device, to start and to end each kernel: of a CPU or not."""
_HOST_SECONDS = 150e-6
_HOST_SECONDS_PER_SEQUENCE = 1.5e-6
"""Of the host, to plan a step and to take its results in."""


class Roofline:
    """Step times of a server, by its first rank: all ranks compute at once.

    engine=Python spreads layers over its GPUs, which compute one after the other, as one rank with all layers.
    """

    def __init__(self, server: SimulatedServer, target: ServingTarget) -> None:
        """target: with devices of the catalogue, or a CPU, which counts as the catalogue's."""
        engine, model = server.engine, server.model
        on_cpu = not target.machine.gpu_count
        hardware = target.device or device(CPU)
        rolling = isinstance(engine, MpiEngineConfig)
        self._ranks = ranks = engine.parallel.tp_size if rolling else 1
        self._description = (
            f"a roofline of {target.machine.name}, {engine.model.dtype}; figures from {hardware.source}"
        )
        self._bandwidth, self._rate = hardware.bandwidth, _rate(server, hardware)
        self._element = 4 if engine.model.dtype == "fp32" else 2
        if on_cpu and rolling:
            self._element = element_bytes(model.dtype, engine.model.dtype, engine.model.quantize, native=True)
        self._experts = model.experts
        self._expert = _expert_weights(model, ranks)
        self._head = split_evenly(model.vocab_size, ranks, 0).size * model.hidden_size
        tables = self._head * (1 if model.tie_word_embeddings else 2)
        tables += model.position_table.num_rows * model.hidden_size if model.position_table else 0
        num_experts = model.experts.num_experts if model.experts else 0
        self._dense = model.weight_bytes(1, ranks) - tables - num_experts * self._expert
        share = split_heads(model.num_heads, model.num_kv_heads, ranks, 0)
        kv_bytes = model.kv_bytes_per_token(server.kv_stored, ranks) / max(model.num_kv_heads, ranks)
        self._kv_bytes = kv_bytes * share.keys_values.size / model.num_layers
        self._flops_per_pair = 4 * share.queries.size * model.head_dim
        self._layers = Counter(spec.window for spec in model.attention)
        """Number of layers by the latest tokens that they see; None: all."""
        self._num_sums = 1 + model.num_layers * (1 if model.parallel_block else 2) if ranks > 1 else 0
        self._sum_bytes = model.hidden_size * (4 if on_cpu or engine.model.dtype == "fp32" else 2)
        self._link = hardware.link
        num_kernels = model.num_layers * _KERNELS[engine.engine]
        self._gaps = num_kernels * _GAP_SECONDS[on_cpu]
        self._launches = 0.0 if on_cpu else num_kernels * _LAUNCH_SECONDS
        self._known: dict[tuple[int, int], float] = {}
        self._has_graphs = rolling and not engine.parallel.enforce_eager

    def describe(self) -> str:
        return self._description

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        """See `StepTimes`."""
        num_seqs, num_tokens = len(counts), sum(counts)
        device = self._without_attention(num_tokens, num_sampled)
        for window, layers in self._layers.items():
            device += layers * self._attention(starts, counts, num_tokens, window)
        host = _HOST_SECONDS + num_seqs * _HOST_SECONDS_PER_SEQUENCE
        if num_tokens > num_seqs or not self._has_graphs:
            host += self._launches
        return StepSeconds(host, device)

    def _without_attention(self, num_tokens: int, num_sampled: int) -> float:
        """What depends on two numbers only. Kept: most steps are like another one."""
        known = self._known.get((num_tokens, num_sampled))
        if known is None:
            known = self._product(self._dense, num_tokens) + self._product(self._head, num_sampled)
            known += self._mixture(num_tokens) + self._gaps + self._sums(num_tokens)
            self._known[num_tokens, num_sampled] = known
        return known

    def _product(self, weights: float, num_rows: float) -> float:
        """Linears with so many weights, on so many rows."""
        if not num_rows:
            return 0.0
        read = weights * self._element / (self._bandwidth * _WEIGHT_BANDWIDTH)
        return max(read, 2 * weights * num_rows / (self._rate * _MATMUL_RATE))

    def _mixture(self, num_tokens: int) -> float:
        """Experts. Those that no token takes are not read; tokens take them at random."""
        if self._experts is None:
            return 0.0
        total, top_k = self._experts.num_experts, self._experts.top_k
        read = total * (1 - (1 - top_k / total) ** num_tokens)
        return self._product(self._expert * read, num_tokens * top_k / read)

    def _attention(
        self, starts: Sequence[int], counts: Sequence[int], num_tokens: int, window: int | None
    ) -> float:
        """One layer. Keys and values are read once, however many of a sequence's tokens are computed."""
        seen = starts if window is None else [min(start, window) for start in starts]
        keys = sum(seen) + num_tokens
        pairs: float = keys
        if num_tokens > len(counts):
            pairs = sum(count * (start + (count + 1) / 2) for start, count in zip(seen, counts, strict=True))
        read = keys * self._kv_bytes / (self._bandwidth * _KV_BANDWIDTH)
        return max(read, pairs * self._flops_per_pair / (self._rate * _ATTENTION_RATE))

    def _sums(self, num_tokens: int) -> float:
        """Sums over ranks: each rank sends 2 (ranks - 1) / ranks times the data."""
        if not self._num_sums:
            return 0.0
        hops = 2 * (self._ranks - 1)
        moved = num_tokens * self._sum_bytes * hops / self._ranks
        latency = hops * _HOP_SECONDS[self._link >= _FAST_LINK]
        return self._num_sums * (latency + moved / (self._link * _LINK_BANDWIDTH))


def _expert_weights(model: ModelConfig, ranks: int) -> int:
    """Numbers in one expert on a rank, over all layers with experts."""
    if model.experts is None:
        return 0
    middle = split_evenly(model.experts.intermediate_size, ranks, 0).size
    return 3 * middle * model.hidden_size * sum(map(model.has_experts, range(model.num_layers)))


def _rate(server: SimulatedServer, hardware: Device) -> float:
    """Rate of products in the dtype that they are computed in; fp32 where the device lacks it, as on every CPU."""
    flops, model = hardware.flops, server.engine.model
    dtype = model.quantize if model.quantize == "int8" else model.dtype
    return flops.get(dtype) or flops.get("fp32") or max(flops.values())
