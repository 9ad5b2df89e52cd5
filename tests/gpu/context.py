"""Context of a part of the GPU check: device, results, time limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from tests.gpu.results import Results
from tests.gpu.timing import Deadline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    results: Results
    device: torch.device
    smoke: bool
    """True: shapes are tiny, and figures mean nothing."""
    folder: Path
    """Folder for scratch files."""
    out: Path
    """Folder of the results."""
    deadline: Deadline
    """Time limit of the part."""

    def has_time_for(self, seconds: float, name: str) -> bool:
        """Return whether this much time is left. If not, record that `name` was not measured."""
        if self.smoke or self.deadline.left > seconds:
            return True
        self.results.missing(name, f"no time: requires {seconds:.0f} s, {self.deadline.left:.0f} s left")
        return False

    def has_memory_for(self, num_bytes: float, name: str) -> bool:
        """Return whether the device has this much free memory. If not, record that `name` was not measured."""
        if self.device.type != "cuda":
            return True
        available, _ = torch.cuda.mem_get_info(self.device)
        if num_bytes <= available:
            return True
        self.results.missing(
            name, f"no memory: requires {num_bytes / 1e9:.0f} GB, {available / 1e9:.0f} GB are free"
        )
        return False

    def size(self, real: T, tiny: T) -> T:
        return tiny if self.smoke else real

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
        """Return new normal random numbers. On a CPU bf16 becomes fp16: the interpreter has no bf16 products."""
        out = torch.empty(shape, dtype=self.dtype(dtype), device=self.device)
        return out.normal_(0.0, scale)

    def dtype(self, requested: torch.dtype) -> torch.dtype:
        return torch.float16 if self.device.type == "cpu" and requested == torch.bfloat16 else requested
