"""`python -m tests.gpu.check --part NAME [--out FILE.json]`: one part of what shows on a GPU that the engine is right,
and how fast it is. Each part takes less than 9 minutes on an H200; `tests.gpu.report` makes the page of them.

Needs torch, triton, transformers, numpy, safetensors and mpi4py, and the folders `.` and `kernels` on PYTHONPATH.
With `--smoke` it goes through a part's code with tiny shapes, on a CPU too (TRITON_INTERPRET=1): its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from lmi_kernels import runs_triton
from tests.gpu.context import Context
from tests.gpu.results import Results


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    module: str
    """In `tests.gpu.parts`."""
    arguments: tuple[str, ...] = ()
    """Of its `run`."""


PARTS = {
    "kernels-bf16": Part(
        "every kernel against its float64 reference, also at the sizes of use", "kernels", ("bf16",)
    ),
    "engine": Part("the whole engine against transformers, on small models of each kind", "engine"),
    "ceilings": Part("what the device can do: copies, reads, products, launches, transfers", "ceilings"),
    "attention": Part("attention as a share of the ceilings, and beside torch's", "attention"),
    "steps": Part(
        "decode steps of Llama-3-8B and Qwen3-0.6B shapes, and idle time between them", "steps", ("small",)
    ),
    "workload-0.6b": Part("256 requests at once, Qwen3-0.6B shapes", "workload", ("qwen3-0.6b",)),
    "steps-large": Part("decode steps of Falcon-40B and Mixtral-8x7B shapes", "steps", ("large",)),
    "workload-8b": Part("256 requests at once, Llama-3-8B shapes", "workload", ("llama-3-8b",)),
    "batching": Part("rolling and static batches on the same kernels, Llama-3-8B shapes", "batching"),
    "aws": Part("the AWS post's two scenarios, Falcon-40B shapes", "aws"),
    "idle": Part("gaps between kernels while 256 sequences generate, by the profiler", "idle"),
    "kernels-fp16": Part("every kernel against its float64 reference, in fp16", "kernels", ("fp16",)),
    "kernels-fp32": Part("the same in fp32", "kernels", ("fp32",)),
    "tune": Part("launch parameters, for kernels/lmi_kernels/tuned/", "tune"),
}
"""In the order in which they are worth running."""


def run_part(part: str, results: Results, device: torch.device, smoke: bool, out: Path | None = None) -> None:
    """Raises what the part could not catch."""
    chosen = PARTS[part]
    module = importlib.import_module(f"tests.gpu.parts.{chosen.module}")
    with tempfile.TemporaryDirectory() as folder:
        module.run(Context(results, device, smoke, Path(folder), out), *chosen.arguments)
    results.finish()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--part", choices=list(PARTS), required=True)
    parser.add_argument("--out", type=Path, help="JSON, written again after every measurement")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, to try the code out")
    arguments = parser.parse_args(argv)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    elif not (arguments.smoke and runs_triton(device)):
        print(
            "there is no GPU here; --smoke with TRITON_INTERPRET=1 tries the code out on a CPU",
            file=sys.stderr,
        )
        return 2
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.part, device, arguments.smoke, arguments.out)
    run_part(arguments.part, results, device, arguments.smoke, arguments.out)
    print(f"{len(results.entries)} entries, {len(results.failed)} not as they should be")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
