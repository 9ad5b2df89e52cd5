"""Plan of the GPU check: parts, each a process with its own time limit, in chapters that fit a short loan of a machine.
The most important chapters come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CHAPTER_SECONDS = 480
"""Time limit of a chapter. A part gets the time that is left, at most its own limit."""

SOME_FAILED = 3
"""Exit code of a part that ran to its end with failed checks. 1 is Python's own exit code for errors."""


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
    "device": Part("what the machine is, and whether it computes", "device", 40),
    "compile": Part("kernels compiled as serving launches them, on all cores", "compile", 90),
    "kernels-bf16": Part(
        "every kernel against its float64 reference, also at the sizes of use", "kernels", 220, ("bf16",)
    ),
    "engine-llama": Part(
        "the whole engine against transformers on a small Llama-3", "engine", 200, ("llama-3-8b",)
    ),
    "engine-mixtral": Part("the same on a small Mixtral", "engine", 220, ("mixtral-8x7b",)),
    "nccl": Part("one rank with NCCL: its sums in CUDA graphs, the engine with it, its end", "nccl", 150),
    "attention": Part("attention as a share of the ceilings, and beside torch's", "attention", 190),
    "times": Part(
        "where a step's time goes: kernels of decodes of 1, 32 and 256 and of a prefill of 2,048",
        "times",
        100,
    ),
    "steps": Part(
        "decode steps of Llama-3-8B and Qwen3-0.6B shapes, mixed steps, idle time between steps",
        "steps",
        170,
        ("small",),
    ),
    "products": Part("matrix products of 1, 4, 16, 32 and 256 rows", "products", 75),
    "workload-0.6b": Part("256 requests at once, Qwen3-0.6B shapes", "workload", 150, ("qwen3-0.6b",)),
    "workload-8b": Part("256 requests at once, Llama-3-8B shapes", "workload", 200, ("llama-3-8b",)),
    "engine-others": Part(
        "the whole engine against transformers on small models of other kinds",
        "engine",
        240,
        ("smollm2-135m", "qwen3-0.6b"),
    ),
    "engine-falcon": Part("the same on small Falcons", "engine", 240, ("falcon-7b", "falcon-40b")),
    "kernels-fp16": Part("every kernel against its float64 reference, in fp16", "kernels", 220, ("fp16",)),
    "kernels-fp32": Part("the same in fp32", "kernels", 220, ("fp32",)),
    "memory": Part(
        "the KV cache's size by option.gpu_memory_utilization, and what work then takes", "memory", 80
    ),
    "races": Part("compute-sanitizer's search for races in kernels that share scratch memory", "races", 110),
    "steps-large": Part("decode steps of Falcon-40B and Mixtral-8x7B shapes", "steps", 150, ("large",)),
    "batching": Part("rolling and static batches on the same kernels, Llama-3-8B shapes", "batching", 190),
    "aws": Part("the AWS post's two scenarios, Falcon-40B shapes", "aws", 240),
    "idle": Part("gaps between kernels while 256 sequences generate, by the profiler", "idle", 60),
    "ceilings": Part("what the device can do: copies, reads, products, launches, transfers", "ceilings", 40),
    "tune": Part("launch parameters, for kernels/lmi_kernels/tuned/", "tune", 430),
}

CHAPTERS: dict[int, Chapter] = {
    1: Chapter(
        "is it right, and attention",
        (
            ("device",),
            ("compile", "kernels-bf16", "engine-llama", "engine-mixtral", "nccl"),
            ("attention",),
        ),
    ),
    2: Chapter("where the time goes", (("device",), ("compile",), ("times",), ("steps",), ("products",))),
    3: Chapter("workloads", (("device",), ("compile",), ("workload-0.6b",), ("workload-8b",))),
    4: Chapter(
        "the rest: is it right",
        (
            ("device",),
            ("engine-others", "engine-falcon", "kernels-fp16", "kernels-fp32"),
            ("memory",),
            ("races",),
        ),
    ),
    5: Chapter("the rest: large models", (("device",), ("compile",), ("steps-large",), ("batching",))),
    6: Chapter("the rest: the post", (("device",), ("compile",), ("aws",), ("idle",), ("ceilings",))),
    7: Chapter("launch parameters", (("device",), ("tune",))),
}


def describe() -> Iterator[str]:
    """Describe every chapter with its parts and their limits."""
    for number, chapter in CHAPTERS.items():
        yield f"chapter {number}: {chapter.title}; at most {chapter.seconds} s of {CHAPTER_SECONDS}"
        for stage in chapter.stages:
            for part in stage:
                beside = " (at once)" if len(stage) > 1 else ""
                yield f"  {part:16} {PARTS[part].seconds:4} s{beside:10}  {PARTS[part].title}"
