"""Step times from data sheets: memory bandwidth, matrix-product rates, kernel launches, all-reduces over ranks.

Nothing here is fitted to measurements of a server. The share of a data sheet's figure that kernels reach is as
published elsewhere: docs/simulating.md names the sources.
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
"""Share of the bandwidth reached when reading weights."""
_KV_BANDWIDTH = 0.85
"""Share of the bandwidth reached when reading keys and values."""
_MATMUL_RATE = 0.7
"""Share of the matrix-product rate reached by linear layers with many rows."""
_ATTENTION_RATE = 0.45
"""Share of the matrix-product rate reached by the attention of prompts."""
_LINK_BANDWIDTH = 0.75
"""Share of a link's bandwidth reached by all-reduces."""
_FAST_LINK = 100e9
"""Bytes per second from which a link counts as NVLink or similar; slower links are PCIe."""
_HOP_SECONDS = {True: 1e-6, False: 3e-6}
"""Latency of each of the 2 (ranks - 1) hops of an all-reduce, by whether the link is fast."""
_KERNELS = {"MPI": 10, "Python": 33}
"""Kernels per layer: fused kernels of engine=MPI, and those of an eager layer of transformers."""
_LAUNCH_SECONDS = 5e-6
"""Host time to launch a kernel that is not in a CUDA graph."""
_GAP_SECONDS = {True: 5e-6, False: 2e-6}
"""Device time to start and end each kernel, by whether the device is a CPU."""
_HOST_SECONDS = 150e-6
_HOST_SECONDS_PER_SEQUENCE = 1.5e-6
"""Host time to plan a step and collect its results."""


class Roofline:
    """Step times of a server, computed for rank 0: all ranks work in parallel.

    engine=Python spreads layers over GPUs that compute one after the other, so it counts as one rank with all layers.
    On a CPU, all ranks and copies share its bandwidth and rate.
    """

    def __init__(self, server: SimulatedServer, target: ServingTarget) -> None:
        """target: with devices of the catalog, or any CPU, for which the catalog's figures are used."""
        engine, model = server.engine, server.model
        on_cpu = not target.machine.gpu_count
        hardware = target.device or device(CPU)
        rolling = isinstance(engine, MpiEngineConfig)
        self._ranks = ranks = engine.parallel.tp_size if rolling else 1
        self._description = (
            f"a roofline of {target.machine.name}, {engine.model.dtype}; figures from {hardware.source}"
        )
        sharing = ranks * server.copies if on_cpu else 1
        self._bandwidth, self._rate = hardware.bandwidth / sharing, _rate(server, hardware) / sharing
        self._element = 4 if on_cpu or engine.model.dtype == "fp32" else 2
        if on_cpu and rolling:
            stored = element_bytes(model.dtype, engine.model.dtype, native=True)
            self._element = 1 if engine.model.quantize == "int8" else stored
        self._experts = model.experts
        self._expert = _expert_weights(model, ranks)
        self._head = split_evenly(model.vocab_size, ranks, 0).size * model.hidden_size
        tables = self._head * (1 if model.tie_word_embeddings else 2)
        tables += model.position_table.num_rows * model.hidden_size if model.position_table else 0
        num_experts = model.experts.num_experts if model.experts else 0
        self._dense = model.weight_bytes(1, ranks) - tables - num_experts * self._expert
        share = split_heads(model.num_heads, model.num_kv_heads, ranks, 0)
        kv_bytes = model.kv_bytes_per_token(server.kv_stored, ranks) / max(model.num_kv_heads, ranks)
        self._kv_bytes = kv_bytes * share.kv_heads.size / model.num_layers
        self._flops_per_pair = 4 * share.queries.size * model.head_dim
        self._layers = Counter(spec.window for spec in model.attention)
        """Number of layers by sliding window in tokens; None means no window."""
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
        """Return the time of all but attention. Cached, because it depends on two numbers that recur."""
        known = self._known.get((num_tokens, num_sampled))
        if known is None:
            known = self._linear_seconds(self._dense, num_tokens) + self._linear_seconds(
                self._head, num_sampled
            )
            known += self._expert_seconds(num_tokens) + self._gaps + self._all_reduce_seconds(num_tokens)
            self._known[num_tokens, num_sampled] = known
        return known

    def _linear_seconds(self, weights: float, num_rows: float) -> float:
        """Return the time of linear layers with `weights` parameters on `num_rows` rows."""
        if not num_rows:
            return 0.0
        read = weights * self._element / (self._bandwidth * _WEIGHT_BANDWIDTH)
        return max(read, 2 * weights * num_rows / (self._rate * _MATMUL_RATE))

    def _expert_seconds(self, num_tokens: int) -> float:
        """Return the time of experts. Tokens choose them at random; experts without a token are not read."""
        if self._experts is None:
            return 0.0
        total, top_k = self._experts.num_experts, self._experts.top_k
        read = total * (1 - (1 - top_k / total) ** num_tokens)
        return self._linear_seconds(self._expert * read, num_tokens * top_k / read)

    def _attention(
        self, starts: Sequence[int], counts: Sequence[int], num_tokens: int, window: int | None
    ) -> float:
        """Return the time of one layer. Keys and values are read once per sequence, however many tokens it has."""
        seen = starts if window is None else [min(start, window) for start in starts]
        keys = sum(seen) + num_tokens
        pairs: float = keys
        if num_tokens > len(counts):
            pairs = sum(count * (start + (count + 1) / 2) for start, count in zip(seen, counts, strict=True))
        read = keys * self._kv_bytes / (self._bandwidth * _KV_BANDWIDTH)
        return max(read, pairs * self._flops_per_pair / (self._rate * _ATTENTION_RATE))

    def _all_reduce_seconds(self, num_tokens: int) -> float:
        """Return the time of all-reduces, in which each rank sends 2 (ranks - 1) / ranks times the data."""
        if not self._num_sums:
            return 0.0
        hops = 2 * (self._ranks - 1)
        moved = num_tokens * self._sum_bytes * hops / self._ranks
        latency = hops * _HOP_SECONDS[self._link >= _FAST_LINK]
        return self._num_sums * (latency + moved / (self._link * _LINK_BANDWIDTH))


def _expert_weights(model: ModelConfig, ranks: int) -> int:
    """Return the parameters of one expert on a rank, over all layers with experts."""
    if model.experts is None:
        return 0
    middle = split_evenly(model.experts.intermediate_size, ranks, 0).size
    num_layers = sum(model.experts_in(layer) is not None for layer in range(model.num_layers))
    return 3 * middle * model.hidden_size * num_layers


def _rate(server: SimulatedServer, hardware: Device) -> float:
    """Return the matrix-product rate in the compute dtype, or in fp32 if the device lacks it, as every CPU does."""
    flops, model = hardware.flops, server.engine.model
    dtype = model.quantize if model.quantize == "int8" else model.dtype
    return flops.get(dtype) or flops.get("fp32") or max(flops.values())
