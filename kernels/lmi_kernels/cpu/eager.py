"""Native operations on tensors, one call each, outside of recorded programs."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.structs import Embed, Linear, Step, Struct
from lmi_kernels.cpu.team import Program, shared_team
from lmi_kernels.cpu.weight import NativeWeight, padded


def multiply(x: torch.Tensor, weight: NativeWeight) -> torch.Tensor:
    """x: [num_rows, in_features] -> [num_rows, out_features], or of a gated weight activation(gate) * up; fp32.

    Raises:
        RuntimeError: there are no native kernels any more.
    """
    x = x.float().contiguous()
    # Of a gated weight whole panels come out.
    y = torch.empty(len(x), padded(weight.width) if weight.gated else weight.width)
    scratch = {
        name: torch.empty(size, dtype=dtype) for name, (size, dtype) in weight.scratch_sizes(len(x)).items()
    }
    linear = Linear(
        weight=weight.handle,
        x=x.data_ptr(),
        y=y.data_ptr(),
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        **weight.epilogue,
        **{name: tensor.data_ptr() for name, tensor in scratch.items()},
    )
    _run(linear, Step(num_rows=len(x)))
    return y[:, : weight.width].contiguous()


def look_up(ids: torch.Tensor, table: NativeWeight, first_id: int) -> torch.Tensor:
    """ids: [num_rows] -> [num_rows, in_features], fp32: the table's columns `id - first_id`, 0 where there is none.

    Raises:
        RuntimeError: there are no native kernels any more.
    """
    y = torch.empty(len(ids), table.in_features)
    numbers = ids.to(torch.int32)
    embed = Embed(table=table.handle, y=y.data_ptr(), y_stride=y.stride(0), first_id=first_id)
    _run(embed, Step(num_rows=len(ids), ids=numbers.data_ptr()))
    return y


def _run(operation: Struct, step: Step) -> None:
    team = shared_team()
    if team is None:
        raise RuntimeError("a native weight needs native kernels")
    team.run(Program([operation]), step)
