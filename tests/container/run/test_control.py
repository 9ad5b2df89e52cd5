"""The supervisor's line to the engine."""

from __future__ import annotations

from pathlib import Path

from container.run.control import EngineControl


def test_waiting_for_figures_ends_when_the_engine_does(tmp_path: Path) -> None:
    """Nobody answers on this address, as after a kill -9 right behind the start."""
    looks = iter([True, True, False])
    with EngineControl(f"ipc://{tmp_path}/engine.sock") as control:
        assert control.stats(1000.0, lambda: next(looks)) is None


def test_waiting_for_figures_is_bounded(tmp_path: Path) -> None:
    with EngineControl(f"ipc://{tmp_path}/engine.sock") as control:
        assert control.stats(0.1, lambda: True) is None
