"""What layers say to other ranks, now or (while a model is recorded) between the operations of a native program."""

from __future__ import annotations

import torch

from engines.parallel import Communicator
from lmi_kernels.cpu import Rows


def sum_over_ranks(tensor: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """tensor: [num_rows, width], each rank's part; may be overwritten. Returns the sum, the same on every rank."""
    if isinstance(tensor, Rows) and comm.world_size > 1:
        return tensor.recorder.outside(tensor, comm.all_reduce)
    return comm.all_reduce(tensor)


def gather_columns(tensor: torch.Tensor, widths: list[int], comm: Communicator) -> torch.Tensor | None:
    """tensor: [num_rows, widths[rank]]. Returns all of them side by side on rank 0, None on the others; of a model that
    is recorded this is the end."""
    if isinstance(tensor, Rows):
        tensor.recorder.end_with(lambda rows: comm.gather_columns(rows, widths))
        return tensor
    return comm.gather_columns(tensor, widths)
