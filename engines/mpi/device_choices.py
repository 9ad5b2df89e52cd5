"""Tokens that a GPU has chosen, on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import SampledToken
from engines.mpi.decode_graphs import DecodeOutputs


class DeviceChoices:
    """A step's (`step_runner.Choices`)."""

    def __init__(self, outputs: DecodeOutputs, places: Sequence[int], host_rows: Sequence[int]) -> None:
        """places: rows of the outputs, one for each sampled sequence."""
        self.host_rows = host_rows
        self._places = places
        self._event: torch.cuda.Event | None = None
        # One copy: finite rows' tokens as they are, others' as -1.
        flagged = torch.where(outputs.finite, outputs.tokens, -1)
        if flagged.is_cuda:
            self._tokens = torch.empty(flagged.shape, dtype=flagged.dtype, pin_memory=True)
            self._tokens.copy_(flagged, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._tokens = flagged

    def take(self) -> list[SampledToken]:
        if self._event is not None:
            self._event.synchronize()
        tokens = self._tokens.tolist()
        return [SampledToken(max(0, tokens[i]), None, tokens[i] >= 0) for i in self._places]
