"""Embedding lookup, in a whole table or in a rank's shard."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lmi_kernels.cpu.eager import look_up
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.linear.linear import LinearWeight, pack


def embedding(
    input_ids: torch.Tensor, table: torch.Tensor | LinearWeight, first_id: int | None = None
) -> torch.Tensor:
    """Look up token ids or positions.

    Args:
        input_ids: [num_rows], int64; in a recorded program `Recorder.ids` or `Recorder.positions`.
        table: [num_ids, hidden]. On a CPU it may be a native weight, possibly shared with the head. A recorded program
            copies a tensor.
        first_id: id of the first row. Ids outside the table give rows of 0. None: all ids are in the table, from 0 on.

    Returns: [num_rows, hidden].

    Raises:
        ValueError: `table` is a `LinearWeight` that is not native.
    """
    if isinstance(input_ids, Rows) and not isinstance(table, LinearWeight):
        table = pack(table)
    if isinstance(table, LinearWeight):
        if table.native is None:
            raise ValueError("table: must be a tensor or a native weight")
        if isinstance(input_ids, Rows):
            return input_ids.recorder.embedding(input_ids, table.native, first_id or 0)
        return look_up(input_ids, table.native, first_id or 0)
    if first_id is None:
        return F.embedding(input_ids, table)
    local = input_ids - first_id
    foreign = (local < 0) | (local >= len(table))
    return F.embedding(local.masked_fill(foreign, 0), table).masked_fill_(foreign[:, None], 0)
