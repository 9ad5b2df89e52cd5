"""Sums and gathers over ranks: done now or, while a model is recorded, between operations of a native program.

Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): split a layer's first linear by output features and its second by
input features, and sum once.
"""

from __future__ import annotations

import torch

from engines.parallel import Communicator
from lmi_kernels.cpu import Rows


def sum_over_ranks(tensor: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """Sum each rank's tensor, [num_rows, width], which may be overwritten. Returns the sum, the same on every rank."""
    if isinstance(tensor, Rows) and comm.world_size > 1:
        return tensor.recorder.outside(tensor, comm.all_reduce)
    return comm.all_reduce(tensor)


def gather_columns(tensor: torch.Tensor, widths: list[int], comm: Communicator) -> torch.Tensor | None:
    """Put the ranks' tensors, [num_rows, widths[rank]], side by side on rank 0; return None on the others.

    In a recorded model this is the last operation.
    """
    if isinstance(tensor, Rows):
        tensor.recorder.end_with(lambda rows: comm.gather_columns(rows, widths))
        return tensor
    return comm.gather_columns(tensor, widths)
