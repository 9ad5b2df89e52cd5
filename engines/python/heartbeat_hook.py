"""Heartbeats and deadlines inside a transformers model, through a hook before every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


class DeadlineReached(Exception):
    """A call of `generate` has reached its deadline. Raised in the middle of a step."""


class HeartbeatHook:
    """Writes heartbeats and enforces the deadline of the running call of `generate`.

    `clock` is `time.monotonic` except in tests.
    """

    def __init__(self, beat: Callable[[], None], clock: Callable[[], float]) -> None:
        self._beat = beat
        self._clock = clock
        self.deadline: float | None = None
        """The running call's deadline by `clock`; None while no batch runs."""

    def start_call(self, seconds: float) -> None:
        """Set the deadline of the call that starts now."""
        self.deadline = self._clock() + seconds

    def beat(self) -> None:
        """Write a heartbeat. Raises `DeadlineReached` after the deadline."""
        self._beat()
        if self.deadline is not None and self._clock() >= self.deadline:
            raise DeadlineReached

    def attach(self, module: torch.nn.Module) -> int:
        """Call `beat` before each layer of a model. Return the number of layers found."""
        layers = list(_layers(module))
        for layer in layers:
            layer.register_forward_pre_hook(lambda module, arguments: self._before_layer(arguments))
        return len(layers)

    def _before_layer(self, arguments: tuple[Any, ...]) -> None:
        """Beat. On a GPU, first wait for the previous layer of a prompt: its kernels have only been queued."""
        states = arguments[0] if arguments else None
        if isinstance(states, torch.Tensor) and states.is_cuda and states.dim() > 1 and states.shape[-2] > 1:
            torch.cuda.current_stream(states.device).synchronize()
        self.beat()


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the members of the outermost module lists: the layers, not the experts or blocks inside them."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def clamp_positions(module: torch.nn.Module, max_positions: int) -> None:
    """Clamp the `position_ids` that a model is called with to the size of its position table.

    A row that has ended continues with padding until its batch ends, and may exceed the table.
    """

    def clamp(
        module: torch.nn.Module, arguments: Any, named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        positions = named.get("position_ids")
        if positions is None:
            return None
        return arguments, {**named, "position_ids": positions.clamp(max=max_positions - 1)}

    module.register_forward_pre_hook(clamp, with_kwargs=True)
