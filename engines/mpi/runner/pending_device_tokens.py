"""Tokens sampled on a GPU, on their way to the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import repeat

import torch

from engines.core import SampledToken
from engines.mpi.runner.decode_graphs import DecodeOutputs

_new = tuple.__new__
_SPIN_SECONDS = 0.002
"""Seconds at the start of a wait in which it spins instead of sleeping. Most waits are shorter."""
_MIN_SLEEP, _MAX_SLEEP = 50e-6, 5e-3
_SLEEP_SHARE = 0.01
"""Length of a sleep, as a share of the wait so far."""
_HANGS_AFTER_SECONDS = 60.0
"""Length of a wait beyond which the GPU counts as stuck. A step takes much less."""


class PendingDeviceTokens:
    """The sampled tokens of one step (a `step_runner.PendingTokens`)."""

    def __init__(
        self,
        outputs: DecodeOutputs,
        places: Sequence[int],
        host_rows: Sequence[int],
        with_logprobs: Sequence[int],
        show_alive: Callable[[], None],
    ) -> None:
        """places: rows of the outputs, one for each sampled sequence.
        with_logprobs: indices of the sampled sequences whose log-probabilities are reported.
        show_alive: called again and again during a long wait.
        """
        self.host_rows = host_rows
        self._places = places
        self._with_logprobs = with_logprobs
        self._show_alive = show_alive
        # One copy for both: rows that are not finite have -1 as their token.
        self._tokens = _to_host(torch.where(outputs.finite, outputs.tokens, -1))
        self._logprobs: torch.Tensor | None = None
        if with_logprobs and outputs.logprobs is not None:
            self._logprobs = _to_host(outputs.logprobs)
        self._event: torch.cuda.Event | None = None
        if outputs.tokens.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> list[SampledToken]:
        if self._event is not None:
            _wait_for(self._event, self._show_alive)
        tokens, places = self._tokens.tolist(), self._places
        if self._logprobs is None and min(tokens) >= 0:
            # The fast path of nearly all steps. One call for each of hundreds of tokens would take four times as long.
            token_ids = map(tokens.__getitem__, places)
            return [*map(_new, repeat(SampledToken), zip(token_ids, repeat(None), repeat(True), repeat(())))]
        logprobs: list[float | None] = [None] * len(places)
        if self._logprobs is not None:
            values = self._logprobs.tolist()
            for i in self._with_logprobs:
                logprobs[i] = values[places[i]]
        return [
            SampledToken(max(0, tokens[at]), logprob, tokens[at] >= 0)
            for at, logprob in zip(places, logprobs, strict=True)
        ]


def _wait_for(event: torch.cuda.Event, show_alive: Callable[[], None]) -> None:
    """Wait for an event. Not with `synchronize`, which would let the heartbeat of a long step become too old."""
    started = time.perf_counter()
    while not event.query():  # type: ignore[no-untyped-call]
        waited = time.perf_counter() - started
        if waited < _SPIN_SECONDS:
            continue
        if waited < _HANGS_AFTER_SECONDS:
            show_alive()
        time.sleep(min(max(_MIN_SLEEP, _SLEEP_SHARE * waited), _MAX_SLEEP))


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Start an asynchronous copy to the host. Later changes of the tensor do not affect it."""
    if not tensor.is_cuda:
        return tensor.clone()
    host_tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host_tensor.copy_(tensor, non_blocking=True)
