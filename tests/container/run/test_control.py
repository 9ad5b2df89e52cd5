"""The supervisor's control connection to the engine."""

from __future__ import annotations

from pathlib import Path

from container.run.control import EngineControl


def test_waiting_for_stats_ends_when_the_engine_exits(tmp_path: Path) -> None:
    """Nothing listens on this address, as when the engine is killed during its start."""
    alive = iter([True, True, False])
    with EngineControl(f"ipc://{tmp_path}/engine.sock") as control:
        assert control.stats(1000.0, lambda: next(alive)) is None


def test_waiting_for_stats_times_out(tmp_path: Path) -> None:
    with EngineControl(f"ipc://{tmp_path}/engine.sock") as control:
        assert control.stats(0.1, lambda: True) is None
