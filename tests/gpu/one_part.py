"""Run one part of the GPU check in this process."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

import torch

from lmi_kernels import runs_triton
from tests.gpu.context import Context
from tests.gpu.plan import CHECKS_FAILED, PARTS
from tests.gpu.records import Records
from tests.gpu.results import Results
from tests.gpu.timing import Deadline


def run_part(name: str, out: Path, seconds: float, smoke: bool) -> int:
    """Return the exit code: 0 if all checks passed, else `CHECKS_FAILED`; 2 if there is no GPU. Errors that the part
    does not catch are raised."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    elif not (smoke and runs_triton(device)):
        print(
            "no GPU found; --smoke with TRITON_INTERPRET=1 runs the code on a CPU",
            file=sys.stderr,
        )
        return 2
    part, results = PARTS[name], Results(name, device, smoke, Records(out))
    module = importlib.import_module(f"tests.gpu.parts.{part.module}")
    with tempfile.TemporaryDirectory() as folder:
        context = Context(results, device, smoke, Path(folder), out, Deadline(seconds))
        module.run(context, *part.arguments)
    results.finish()
    print(f"{len(results.entries)} entries, {len(results.failed)} failed")
    return CHECKS_FAILED if results.failed else 0
