"""What every part of the GPU check is given."""

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
    """Tiny shapes; figures mean nothing."""
    folder: Path
    """For scratch files."""
    out: Path
    """Where the results go."""
    deadline: Deadline
    """When the part will be ended."""

    def has(self, seconds: float, name: str) -> bool:
        """Whether there is so much time left; where there is not, the results say that `name` was not measured."""
        if self.smoke or self.deadline.left > seconds:
            return True
        self.results.missing(name, f"{self.deadline.left:.0f} s were left, it takes {seconds:.0f}")
        return False

    def size(self, real: T, tiny: T) -> T:
        return tiny if self.smoke else real

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers, fresh ones; bf16 is fp16 where the interpreter computes, which has no bf16 products."""
        out = torch.empty(shape, dtype=self.dtype(dtype), device=self.device)
        return out.normal_(0.0, scale)

    def dtype(self, wanted: torch.dtype) -> torch.dtype:
        return torch.float16 if self.device.type == "cpu" and wanted == torch.bfloat16 else wanted
