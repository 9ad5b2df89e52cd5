"""A model on native CPU kernels.

A model is recorded as programs: token ids to hidden states, hidden states to logits, and hidden states to the largest
logits. A model that cannot be recorded runs operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from engines.layers.native_step_attention import LayerAttentions, NativeStepAttention
from engines.layers.recorded_attention import RecordedAttention
from engines.layers.rotary import RotaryTables
from engines.models.decoder import LargestLogits, Model
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import NotRecorded, OpKind, Recorder, Recording, Rows, Step, StepInput, Team, bind

_ATTENTION = (OpKind.ROPE_AND_STORE, OpKind.ATTENTION)


class NativeModel(Protocol):
    """A model that computes a step in two parts: hidden states, then logits."""

    def forward(self, step_input: StepInput, stopwatch: Stopwatch) -> None:
        """Compute hidden states of the rows that are selected in the input, and add the time spent in attention to the
        stopwatch."""

    def logits(self, places: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of some of these rows on rank 0, None on the other ranks. They are valid until the next
        call.

        places: numbers among the selected rows, int32 -> [len(places), vocab_size].
        """

    @property
    def largest_logits(self) -> LargestLogits | None:
        """A function from places, as for `logits`, to what `VocabParallelHead.largest` returns for these rows; None if
        all logits must be computed."""


class RecordedModel:
    """A `NativeModel` that runs recorded programs."""

    def __init__(
        self,
        model: Model,
        cache: Any,
        tables: RotaryTables,
        team: Team,
        max_tokens: int,
        max_logits: int,
        *,
        has_greedy_head: bool,
    ) -> None:
        """
        max_tokens: maximum tokens in a step; max_logits: maximum rows per call of `logits`; has_greedy_head: whether to
        record `largest_logits`, which all ranks must do or none.

        Raises:
            NotRecorded: the model needs an operation that is not native.
        """
        self._team = team
        self._forward = record_forward(model, cache, tables, team, max_tokens)
        hidden = self._forward.buffer
        self._logits = _record_head(model.logits, hidden, team, max_logits)
        self.largest_logits: LargestLogits | None = None
        if has_greedy_head and model.largest_logits is not None:
            self.largest_logits = partial(
                _run_head, _record_head(model.largest_logits, hidden, team, max_logits)
            )

    def forward(self, step_input: StepInput, stopwatch: Stopwatch) -> None:
        before = self._team.seconds(_ATTENTION)
        self._forward.run(step_input.step)
        stopwatch.add("attention", self._team.seconds(_ATTENTION) - before)

    def logits(self, places: torch.Tensor) -> torch.Tensor | None:
        return _run_head(self._logits, places)


class EagerModel:
    """A `NativeModel` that calls native linear layers and attention one by one. Torch computes the rest."""

    largest_logits = None

    def __init__(self, model: Model, cache: Any, team: Team) -> None:
        self._model = model
        self._cache = cache
        self._team = team
        self._layers: LayerAttentions = {}
        self._hidden = torch.empty(0)

    @torch.inference_mode()
    def forward(self, step_input: StepInput, stopwatch: Stopwatch) -> None:
        """Compute hidden states. The model's layers measure attention themselves."""
        attention = NativeStepAttention(
            self._team,
            self._layers,
            step_input.step,
            step_input.positions.long(),
            step_input.slots,
            step_input.places,
        )
        self._hidden = self._model.forward(step_input.ids.long(), self._cache, attention)

    @torch.inference_mode()
    def logits(self, places: torch.Tensor) -> torch.Tensor | None:
        return self._model.logits(self._hidden[places])


def record_forward(model: Model, cache: Any, tables: RotaryTables, team: Team, max_rows: int) -> Recording:
    """Record the layers. A run returns the hidden states before the final norm of the rows at the step's places,
    [num_places, hidden].

    cache: a `NativeKvCache`.

    Raises:
        NotRecorded: the model needs an operation that is not native.
    """
    recorder = Recorder(team, max_rows)
    hidden = model.forward(
        recorder.ids, cache, RecordedAttention(recorder.positions, recorder.places, tables)
    )
    return bind(recorder, _rows(hidden))


def _record_head(
    head: Callable[[torch.Tensor], torch.Tensor | None], hidden: torch.Tensor, team: Team, max_rows: int
) -> Recording:
    """Record final norm and head for the rows of `hidden`, [max_rows, hidden], at the step's places.

    A run returns what `head` returns for these rows on rank 0, on other ranks a tensor without columns. The next run
    overwrites it.

    Raises:
        NotRecorded: see `record_forward`.
    """
    recorder = Recorder(team, max_rows)
    result = head(recorder.gather(hidden, hidden.shape[1]))
    if result is None:
        raise NotRecorded("a head without a result")
    return bind(recorder, _rows(result))


def _run_head(head: Recording, places: torch.Tensor) -> torch.Tensor | None:
    result = head.run(Step(num_places=len(places), places=places.data_ptr()))
    return result if result.shape[1] else None


def _rows(tensor: torch.Tensor) -> Rows:
    if not isinstance(tensor, Rows):
        raise NotRecorded("a result that no operation computed")
    return tensor
