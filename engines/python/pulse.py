"""Signs of life from inside of a model that is not ours: a look at the clock before every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


class TimeIsOver(Exception):
    """The batch's time is over. Raised in the middle of a step."""


class Pulse:
    """Beats, and keeps the deadline of the running batch. `clock` is `time.monotonic` but in tests."""

    def __init__(self, beat: Callable[[], None], clock: Callable[[], float]) -> None:
        self._beat = beat
        self._clock = clock
        self.deadline: float | None = None
        """By `clock`; None while no batch runs."""

    def beat(self) -> None:
        """Raises `TimeIsOver`."""
        self._beat()
        if self.deadline is not None and self._clock() >= self.deadline:
            raise TimeIsOver

    def attach(self, module: torch.nn.Module) -> int:
        """Beat before each layer of a model. Returns how many layers were found."""
        count = 0
        for layer in _layers(module):
            layer.register_forward_pre_hook(self._before_layer)
            count += 1
        return count

    def _before_layer(self, module: torch.nn.Module, arguments: Any) -> None:
        self.beat()


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """What stands in the outermost lists of modules: layers, but not the experts or blocks inside of them."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def keep_positions_inside(module: torch.nn.Module, max_positions: int) -> None:
    """Clamp the positions that a model is called with to its table of them.

    A row that has ended goes on as padding until its batch ends, and may come to positions that no request has.
    """

    def clamp(
        module: torch.nn.Module, arguments: Any, named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        positions = named.get("position_ids")
        if positions is None:
            return None
        return arguments, {**named, "position_ids": positions.clamp(max=max_positions - 1)}

    module.register_forward_pre_hook(clamp, with_kwargs=True)
