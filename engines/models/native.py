"""A model as two programs of native operations: from token ids to hidden states, from these to logits."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from engines.layers.recorded_attention import RecordedAttention
from lmi_kernels.cpu import NotRecorded, Recorder, Recording, Rows, Team, bind


class _Model(Protocol):
    def forward(
        self, input_ids: torch.Tensor, cache: Any, step: Any, num_layers: int | None = None
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None: ...


def record_forward(
    model: _Model, cache: Any, cos_sin: torch.Tensor, team: Team, max_rows: int, num_layers: int | None
) -> Recording:
    """Its result: hidden states before the last norm, [num_rows, hidden].

    cache: a `NativeKvCache`; cos_sin: [num_positions, head_dim], fp32.

    Raises:
        NotRecorded: the model does what no native operation does.
    """
    recorder = Recorder(team, max_rows)
    hidden = model.forward(recorder.ids(), cache, RecordedAttention(cos_sin), num_layers)
    return bind(recorder, _rows(hidden))


def record_logits(model: _Model, hidden: torch.Tensor, team: Team, max_rows: int) -> Recording:
    """Of the rows of `hidden`, [max_rows, hidden], that a step's `places` pick. A run returns, on rank 0, their logits,
    [num_rows, vocab_size], which the next run overwrites; None on other ranks.

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
