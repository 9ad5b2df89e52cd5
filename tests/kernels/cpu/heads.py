"""A head with its int8 copy, for tests."""

from __future__ import annotations

import torch

import lmi_kernels
from lmi_kernels.cpu import LogitBounds, Recorder, bind
from lmi_kernels.cpu.structs import Step
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.linear.linear import LinearWeight

FIRST_ID = 70


class Head:
    """A head with its int8 copy, as a program that finds largest logits and as one that computes all logits."""

    def __init__(
        self,
        team: Team,
        matrix: torch.Tensor,
        softcap: float | None = None,
        max_rows: int = 70,
    ) -> None:
        packed = LinearWeight(None, None, None, NativeWeight(team, matrix))
        self.bounds = LogitBounds(team, matrix)
        self._x = torch.full((max_rows, matrix.shape[1]), torch.nan)
        bounded, full = Recorder(team, max_rows), Recorder(team, max_rows)
        found = lmi_kernels.greedy_head(
            bounded.gather(self._x, matrix.shape[1]), packed, self.bounds, FIRST_ID, softcap
        )
        logits = lmi_kernels.linear(full.gather(self._x, matrix.shape[1]), packed)
        if softcap is not None:
            logits = lmi_kernels.softcap(logits, softcap)
        assert isinstance(found, lmi_kernels.cpu.Rows)
        assert isinstance(logits, lmi_kernels.cpu.Rows)
        self._bounded, self._full = bind(bounded, found), bind(full, logits)

    def _run(self, x: torch.Tensor) -> Step:
        self._x[: len(x)] = x
        self._places = torch.arange(len(x), dtype=torch.int32)
        return Step(num_places=len(x), places=self._places.data_ptr())

    def find(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._bounded.run(self._run(x)).clone()
        return found

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._full.run(self._run(x)).clone()
        return logits


def best(logits: torch.Tensor) -> torch.Tensor:
    """Return what `greedy_head` returns for these logits."""
    values = logits.amax(dim=1)
    finite, first = values.isfinite(), (logits == values[:, None]).int().argmax(dim=1)
    return torch.stack((values.where(finite, torch.nan), (first + FIRST_ID).float().where(finite, 0)), dim=1)
