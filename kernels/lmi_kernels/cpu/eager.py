"""Native operations on tensors, one per call, outside of recorded programs."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.structs import Embed, Norm, Step
from lmi_kernels.cpu.team import Program, Team, shared_team
from lmi_kernels.cpu.weight import NativeWeight, padded


def multiply(x: torch.Tensor, weight: NativeWeight) -> torch.Tensor:
    """Multiply rows by a weight. x: [num_rows, in_features] -> [num_rows, out_features], fp32. Not thread-safe.

    For a gated weight return activation(gate) * up, [num_rows, out_features / 2].

    Raises:
        ValueError: x has another width than the weight.
        RuntimeError: native kernels are no longer available.
    """
    team, (linear, program, step) = _team(), weight.product
    x = _as_rows(x)
    weight.check_width(x)
    num_rows, width = x.shape[0], weight.width
    # The result of a gated weight has whole panels.
    columns = padded(width) if weight.gated else width
    y = torch.empty(num_rows, columns)
    for name, (size, dtype) in weight.scratch_sizes(num_rows).items():
        setattr(linear, name, team.scratch(name, size, dtype).data_ptr())
    linear.x, linear.x_stride = x.data_ptr(), x.stride(0)
    linear.y, linear.y_stride = y.data_ptr(), columns
    step.num_rows = num_rows
    team.run(program, step)
    return y if columns == width else y[:, :width].contiguous()


class RmsNorm:
    """RMSNorm with a weight, as a reusable operation."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """weight: [width]."""
        self._weight = weight.detach().float().contiguous()
        self._norm = Norm(weight=self._weight.data_ptr(), width=len(weight), eps=eps)
        self._program, self._step = Program([self._norm]), Step()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize rows. x: [num_rows, width] -> [num_rows, width], fp32. Raises RuntimeError: see `multiply`."""
        x, norm = _as_rows(x), self._norm
        y = torch.empty_like(x)
        norm.x, norm.x_stride = x.data_ptr(), x.stride(0)
        norm.y, norm.y_stride = y.data_ptr(), y.stride(0)
        self._step.num_rows = x.shape[0]
        _team().run(self._program, self._step)
        return y


def look_up(ids: torch.Tensor, table: NativeWeight, first_id: int) -> torch.Tensor:
    """Look up rows `id - first_id` of a table. ids: [num_rows] -> [num_rows, in_features], fp32; 0 for ids outside it.

    Raises:
        RuntimeError: native kernels are no longer available.
    """
    y = torch.empty(len(ids), table.in_features)
    numbers = ids.to(torch.int32)
    embed = Embed(table=table.handle, y=y.data_ptr(), y_stride=y.stride(0), first_id=first_id)
    _team().run(Program([embed]), Step(num_rows=len(ids), ids=numbers.data_ptr()))
    return y


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    x = x if x.dtype is torch.float32 else x.float()
    return x if x.is_contiguous() else x.contiguous()


def _team() -> Team:
    team = shared_team()
    if team is None:
        raise RuntimeError("native operations need native kernels")
    return team
