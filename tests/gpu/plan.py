"""Plan of the GPU check: parts, each a process with its own time limit, in chapters that fit a short loan of a machine.
The most important chapters come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CHAPTER_SECONDS = 480
"""Time limit of a chapter. A part gets the time that is left, at most its own limit."""

CHECKS_FAILED = 3
"""Exit code of a part that finished with failed checks. 1 is Python's own exit code for errors."""


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    module: str
    """Module in `tests.gpu.parts`."""
    seconds: int
    """Time limit. A part that exceeds it is killed, and its results so far are kept."""
    arguments: tuple[str, ...] = ()
    """Arguments of the module's `run`."""


@dataclass(frozen=True, slots=True)
class Chapter:
    title: str
    stages: tuple[tuple[str, ...], ...]
    """Parts of one stage run concurrently. A part that measures times is alone in its stage."""

    @property
    def seconds(self) -> int:
        """Duration if every part takes all of its time."""
        return sum(max(PARTS[part].seconds for part in stage) for stage in self.stages)


PARTS: dict[str, Part] = {
    "device": Part("device properties and a first computation", "device", 40),
    "compile": Part("compilation of all kernels as serving launches them, on all cores", "compile", 90),
    "kernels-bf16": Part(
        "every kernel against its float64 reference, also at production sizes", "kernels", 220, ("bf16",)
    ),
    "engine-llama": Part(
        "the whole engine against transformers: a small Llama-3", "engine", 200, ("llama-3-8b",)
    ),
    "engine-mixtral": Part(
        "the whole engine against transformers: a small Mixtral", "engine", 220, ("mixtral-8x7b",)
    ),
    "nccl": Part("NCCL with one rank: collectives in CUDA graphs, the engine, shutdown", "nccl", 150),
    "attention": Part("attention as a share of the ceilings, and compared with torch", "attention", 190),
    "times": Part(
        "time per kernel in decode steps of 1, 32 and 256 sequences and in a prefill of 2,048 tokens",
        "times",
        100,
    ),
    "steps": Part(
        "decode steps with Llama-3-8B and Qwen3-0.6B shapes, mixed steps, idle time between steps",
        "steps",
        170,
        ("small",),
    ),
    "products": Part("matrix products with 1, 4, 16, 32 and 256 rows", "products", 75),
    "workload-0.6b": Part("256 requests at once, Qwen3-0.6B shapes", "workload", 150, ("qwen3-0.6b",)),
    "workload-8b": Part("256 requests at once, Llama-3-8B shapes", "workload", 200, ("llama-3-8b",)),
    "engine-others": Part(
        "the whole engine against transformers: SmolLM2-135M and a small Qwen3",
        "engine",
        240,
        ("smollm2-135m", "qwen3-0.6b"),
    ),
    "engine-falcon": Part(
        "the whole engine against transformers: small Falcons", "engine", 240, ("falcon-7b", "falcon-40b")
    ),
    "kernels-fp16": Part("every kernel against its float64 reference, in fp16", "kernels", 220, ("fp16",)),
    "kernels-fp32": Part("every kernel against its float64 reference, in fp32", "kernels", 220, ("fp32",)),
    "memory": Part("KV cache size by option.gpu_memory_utilization, and memory use under load", "memory", 80),
    "races": Part(
        "compute-sanitizer's racecheck on kernels whose threads share scratch memory", "races", 110
    ),
    "steps-large": Part("decode steps with Falcon-40B and Mixtral-8x7B shapes", "steps", 150, ("large",)),
    "batching": Part("rolling and static batches on the same kernels, Llama-3-8B shapes", "batching", 190),
    "aws": Part("the AWS post's two scenarios, Falcon-40B shapes", "aws", 240),
    "server": Part(
        "the server on a GPU: start, tokens, drain, death of the engine, engine=Python", "server", 200
    ),
    "idle": Part("gaps between kernels while 256 sequences decode, from the profiler", "idle", 60),
    "ceilings": Part("device ceilings: copies, reads, matrix products, launches, transfers", "ceilings", 40),
    "tune": Part("search for launch parameters, for kernels/lmi_kernels/tuned/", "tune", 430),
}

CHAPTERS: dict[int, Chapter] = {
    1: Chapter(
        "correctness and attention",
        (
            ("device",),
            ("compile", "kernels-bf16", "engine-llama", "engine-mixtral", "nccl"),
            ("attention",),
        ),
    ),
    2: Chapter("step times", (("device",), ("compile",), ("times",), ("steps",), ("products",))),
    3: Chapter("workloads", (("device",), ("compile",), ("workload-0.6b",), ("workload-8b",))),
    4: Chapter(
        "correctness: other models and dtypes, memory, races",
        (
            ("device",),
            ("engine-others", "engine-falcon", "kernels-fp16", "kernels-fp32"),
            ("memory",),
            ("races",),
        ),
    ),
    5: Chapter(
        "large models and static batching", (("device",), ("compile",), ("steps-large",), ("batching",))
    ),
    6: Chapter(
        "AWS post, idle time, ceilings", (("device",), ("compile",), ("aws",), ("idle",), ("ceilings",))
    ),
    7: Chapter("the server", (("device",), ("compile",), ("server",))),
    8: Chapter("launch parameters", (("device",), ("tune",))),
}


def describe() -> Iterator[str]:
    """Describe every chapter with its parts and their limits."""
    for number, chapter in CHAPTERS.items():
        yield f"chapter {number}: {chapter.title}; at most {chapter.seconds} s of {CHAPTER_SECONDS}"
        for stage in chapter.stages:
            for part in stage:
                note = " (concurrent)" if len(stage) > 1 else ""
                yield f"  {part:16} {PARTS[part].seconds:4} s{note:13}  {PARTS[part].title}"
