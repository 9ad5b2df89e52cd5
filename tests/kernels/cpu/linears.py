"""One native linear as a program."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.structs import Epilogue, Linear, Step
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight


def multiply(
    team: Team, weight: NativeWeight, x: torch.Tensor, y: torch.Tensor, epilogue: Epilogue = Epilogue.STORE
) -> None:
    """Put the products of the rows of x, or add them, into y."""
    scratch = {
        name: torch.full((size,), 77, dtype=dtype)
        for name, (size, dtype) in weight.scratch_sizes(len(x)).items()
    }
    linear = Linear(
        weight=weight.handle,
        x=x.data_ptr(),
        y=y.data_ptr(),
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        epilogue=epilogue,
        **{name: tensor.data_ptr() for name, tensor in scratch.items()},
    )
    team.run(Program([linear]), Step(num_rows=len(x)))
