"""All-reduce and gather over ranks. In a recorded model, both are native operations.

As in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053), the first linear layer of a pair is sharded by output
features and the second by input features, so one all-reduce per pair is enough.
"""

from __future__ import annotations

import torch

from engines.parallel import Communicator
from lmi_kernels.cpu import Rows


def all_reduce(tensor: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """Return the sum of all ranks' tensors, [num_rows, width], on every rank. `tensor` may be overwritten."""
    if isinstance(tensor, Rows) and comm.world_size > 1:
        return tensor.recorder.all_reduce(tensor, comm)
    return comm.all_reduce(tensor)


def gather_columns(tensor: torch.Tensor, widths: list[int], comm: Communicator) -> torch.Tensor | None:
    """Concatenate the ranks' tensors, [num_rows, widths[rank]], by columns on rank 0. Return None on other ranks.

    In a recorded model, the result on other ranks has a width of 0.
    """
    if isinstance(tensor, Rows):
        return tensor if comm.world_size == 1 else tensor.recorder.gather_columns(tensor, widths, comm)
    return comm.gather_columns(tensor, widths)
