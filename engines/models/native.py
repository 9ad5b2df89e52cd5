"""A model on native kernels: as two programs, from token ids to hidden states and from these to logits, or (what
cannot be recorded) operation by operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engines.layers.native_step_attention import NativeLayers, NativeStepAttention
from engines.layers.recorded_attention import RecordedAttention
from engines.layers.rotary import RotaryTables
from engines.models.decoder import Model
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import NotRecorded, OpKind, Recorder, Recording, Rows, Step, Team, bind

_LEAST_OPS_A_CALL = 16
"""Native operations between two signs of life: two layers of a large model's prompt may take seconds."""
_ROWS_A_CALL = 2048
"""Where rows are few a call has more operations, up to so many times rows: each call ends with all threads waiting, and
takes the interpreter's lock."""
_ATTENTION = (OpKind.ROPE_AND_STORE, OpKind.ATTENTION)


@dataclass(frozen=True, slots=True)
class NativeInput:
    """A step as native kernels take it, and the arrays that it points to, int32."""

    step: Step
    ids: NDArray[np.int32]
    """[num_tokens]"""
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    others: tuple[object, ...]


class NativeModel(Protocol):
    """A model whose steps end in two parts."""

    def forward(self, given: NativeInput, stopwatch: Stopwatch) -> None:
        """Compute hidden states, and add the time of attention to the stopwatch."""

    def logits(self, places: torch.Tensor) -> torch.Tensor | None:
        """Return logits of rows of the step, int32 -> [len(places), vocab_size] on rank 0, None on the others; valid
        until the next call."""


class RecordedModel:
    """A `NativeModel` of two programs."""

    def __init__(
        self,
        model: Model,
        cache: Any,
        tables: RotaryTables,
        team: Team,
        max_tokens: int,
        max_logits: int,
        num_layers: int | None,
    ) -> None:
        """
        max_tokens: of a step; max_logits: rows whose logits are computed at once.

        Raises:
            NotRecorded: the model does what no native operation does.
        """
        self._team = team
        self._forward = record_forward(model, cache, tables, team, max_tokens, num_layers)
        self._logits = record_logits(model, self._forward.result, team, max_logits)

    def forward(self, given: NativeInput, stopwatch: Stopwatch) -> None:
        before = self._attention_seconds()
        most_ops = max(_LEAST_OPS_A_CALL, _ROWS_A_CALL // given.step.num_rows)
        self._forward.run(given.step, stopwatch.show_alive, most_ops)
        stopwatch.add("attention", self._attention_seconds() - before)

    def logits(self, places: torch.Tensor) -> torch.Tensor | None:
        step = Step(num_rows=len(places), places=places.data_ptr())
        logits: torch.Tensor | None = self._logits.run(step)
        return logits

    def _attention_seconds(self) -> float:
        seconds = self._team.seconds()
        return sum(seconds[kind] for kind in _ATTENTION)


class EagerModel:
    """A `NativeModel` whose linears and attention are native, one call each; torch computes the rest."""

    def __init__(self, model: Model, cache: Any, team: Team, num_layers: int | None) -> None:
        self._model = model
        self._cache = cache
        self._layers = NativeLayers(team)
        self._num_layers = num_layers
        self._hidden = torch.empty(0)

    @torch.inference_mode()
    def forward(self, given: NativeInput, stopwatch: Stopwatch) -> None:
        """The model's layers have the stopwatch themselves."""
        ids, positions = (torch.from_numpy(each.astype(np.int64)) for each in (given.ids, given.positions))
        slots = torch.from_numpy(given.slots)
        attention = NativeStepAttention(self._layers, given.step, positions, slots)
        self._hidden = self._model.forward(ids, self._cache, attention, self._num_layers)

    @torch.inference_mode()
    def logits(self, places: torch.Tensor) -> torch.Tensor | None:
        return self._model.logits(self._hidden[places])


def record_forward(
    model: Model, cache: Any, tables: RotaryTables, team: Team, max_rows: int, num_layers: int | None
) -> Recording:
    """Record the layers. The result of a run is the hidden states before the last norm, [num_rows, hidden].

    cache: a `NativeKvCache`.

    Raises:
        NotRecorded: the model needs an operation that is not native.
    """
    recorder = Recorder(team, max_rows)
    hidden = model.forward(recorder.ids(), cache, RecordedAttention(recorder.positions(), tables), num_layers)
    return bind(recorder, _rows(hidden))


def record_logits(model: Model, hidden: torch.Tensor, team: Team, max_rows: int) -> Recording:
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
