"""A model as two programs of native operations: from token ids to hidden states, from these to logits."""

from __future__ import annotations

from typing import Any

import torch

from engines.layers.recorded_attention import RecordedAttention
from engines.layers.rotary import RotaryTables
from engines.models.decoder import Decoder
from lmi_kernels.cpu import NotRecorded, Recorder, Recording, Rows, Team, bind


def record_forward(
    model: Decoder, cache: Any, tables: RotaryTables, team: Team, max_rows: int, num_layers: int | None
) -> Recording:
    """Record the layers. The result of a run is the hidden states before the last norm, [num_rows, hidden].

    cache: a `NativeKvCache`.

    Raises:
        NotRecorded: the model needs an operation that is not native.
    """
    recorder = Recorder(team, max_rows)
    hidden = model.forward(recorder.ids(), cache, RecordedAttention(recorder.positions(), tables), num_layers)
    return bind(recorder, _rows(hidden))


def record_logits(model: Decoder, hidden: torch.Tensor, team: Team, max_rows: int) -> Recording:
    """Record norm and head, for the rows of `hidden`, [max_rows, hidden], that a step's `places` select.

    A run returns their logits on rank 0, [num_rows, vocab_size], which the next run overwrites; None on other ranks.

    Raises:
        NotRecorded: as `record_forward`.
    """
    recorder = Recorder(team, max_rows)
    logits = model.logits(recorder.gathered(hidden, hidden.shape[1]))
    if logits is None:
        raise NotRecorded("a head without logits")
    return bind(recorder, _rows(logits))


def _rows(tensor: torch.Tensor) -> Rows:
    if not isinstance(tensor, Rows):
        raise NotRecorded("a result that no operation gave")
    return tensor
