"""Embeddings, or the part of them that a rank has."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lmi_kernels.cpu.eager import look_up
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.linear.linear import LinearWeight, pack


def embedding(
    input_ids: torch.Tensor, table: torch.Tensor | LinearWeight, first_id: int = 0, num_ids: int | None = None
) -> torch.Tensor:
    """Look token ids up, or positions.

    Args:
        input_ids: [num_rows], int64; in a recorded program `Recorder.ids` or `Recorder.positions`.
        table: [num_ids, hidden], of the ids from `first_id` on; on a CPU it may be a native weight, which the head may
            share. A recorded program copies a tensor.
        num_ids: ids outside of the table give rows of 0; None: there are none.

    Returns: [num_rows, hidden].

    Raises:
        ValueError: the weight is not native.
    """
    if isinstance(input_ids, Rows) and not isinstance(table, LinearWeight):
        table = pack(table)
    if isinstance(table, LinearWeight):
        if table.native is None:
            raise ValueError("embeddings are looked up in a tensor or a native weight")
        if isinstance(input_ids, Rows):
            return input_ids.recorder.embedding(input_ids, table.native, first_id)
        return look_up(input_ids, table.native, first_id)
    if num_ids is None:
        return F.embedding(input_ids, table)
    local = input_ids - first_id
    foreign = (local < 0) | (local >= num_ids)
    return F.embedding(local.masked_fill(foreign, 0), table).masked_fill_(foreign[:, None], 0)
