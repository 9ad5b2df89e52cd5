"""Targets of the measurements on a GPU, each relative to another measurement in the same process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    part: str
    title: str
    threshold: float
    at_most: bool = False
    times: bool = False
    """True: a ratio to a peer or another configuration, not a share of a limit."""

    @property
    def requirement(self) -> str:
        bound = "at most" if self.at_most else "at least"
        return f"{bound} {self.amount(self.threshold)}"

    def met_by(self, share: float) -> bool:
        return share <= self.threshold if self.at_most else share >= self.threshold

    def amount(self, share: float) -> str:
        return f"{share:.2f}x" if self.times else f"{100 * share:.1f} %"


TARGETS: dict[str, Target] = {
    "decode-attention": Target(
        "attention",
        "decode attention, at least 0.5 GB of KV, shuffled pages, bf16: share of the copy bandwidth",
        0.85,
    ),
    "prefill-attention": Target(
        "attention", "prefill attention, causal, head dim 128, 8k tokens: share of the matmul rate", 0.57
    ),
    "prefill-cudnn": Target(
        "attention",
        "prefill attention, causal, head dim 128, 8k tokens: speed relative to torch's cuDNN attention",
        0.75,
        times=True,
    ),
    "llama-1": Target("steps", "Llama-3-8B shapes, decode step of 1 sequence: share of its floor", 0.78),
    "llama-32": Target("steps", "Llama-3-8B shapes, decode step of 32 sequences: share of its floor", 0.75),
    "llama-256": Target("steps", "Llama-3-8B shapes, decode step of 256 sequences: share of its floor", 0.75),
    "falcon-32": Target(
        "steps-large", "Falcon-40B shapes in bf16, decode step of 32 sequences: share of its floor", 0.85
    ),
    "mixtral-32": Target(
        "steps-large", "Mixtral-8x7B shapes, decode step of 32 sequences: share of its floor", 0.70
    ),
    "llama-prefill": Target(
        "steps", "Llama-3-8B shapes, prefill of 2048 tokens: share of the matmul rate", 0.85
    ),
    "graphs": Target(
        "steps",
        "Qwen3-0.6B shapes, decode step of 1 sequence: speedup from CUDA graphs",
        2.0,
        times=True,
    ),
    "idle-llama": Target(
        "steps",
        "Llama-3-8B shapes, 256 sequences: share of a decode step with the GPU idle",
        0.02,
        at_most=True,
    ),
    "idle-qwen": Target(
        "steps",
        "Qwen3-0.6B shapes, 256 sequences: share of a decode step with the GPU idle",
        0.10,
        at_most=True,
    ),
    "w6-qwen": Target("workload-0.6b", "W6, Qwen3-0.6B shapes: share of the trace's throughput limit", 0.50),
    "w6-llama": Target("workload-8b", "W6, Llama-3-8B shapes: share of the trace's throughput limit", 0.60),
    "peer-qwen": Target(
        "workload-0.6b",
        "W6, Qwen3-0.6B shapes: speed relative to transformers' generate_batch",
        3.0,
        times=True,
    ),
    "peer-llama": Target(
        "workload-8b",
        "W6, Llama-3-8B shapes: speed relative to transformers' generate_batch",
        3.0,
        times=True,
    ),
    "same-batch": Target(
        "batching",
        "W3, at most 512 output tokens: speed of rolling batches of 32 relative to static batches of 32",
        2.3,
        times=True,
    ),
    "static-8": Target(
        "batching",
        "W3, at most 512 output tokens: speed of rolling batches of 256 relative to static batches of 8",
        10.0,
        times=True,
    ),
}
