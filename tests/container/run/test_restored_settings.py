"""The scheduler settings of a restarted copy. The copies are fakes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.run.supervise import Supervisor
from engines.copies.settings_lock import settings_lock
from engines.core import SchedulerReply, SchedulerSettings
from engines.errors import Unavailable


def restore_second_copy(lock: Path, *schedulers: Callable[..., SchedulerReply | None]) -> list[str]:
    """Restore the settings of the second of several copies. Return what the supervisor prints."""
    copies: list[Any] = [
        SimpleNamespace(name=f"copy {n}", was_ready=True, control=SimpleNamespace(scheduler=scheduler))
        for n, scheduler in enumerate(schedulers, 1)
    ]
    messages: list[str] = []
    others: Any = None, SimpleNamespace(wait=time.sleep, count=0)
    Supervisor(copies, *others, messages.append, lock)._restore_settings(copies[1])
    return messages


def test_a_restarted_copy_gets_the_settings_under_the_settings_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    received: list[dict[str, Any]] = []

    def scheduler(changes: dict[str, Any], *_: object) -> SchedulerReply:
        with pytest.raises(Unavailable), settings_lock(lock, 0, time.sleep):
            pass
        received.append(changes)
        return SchedulerReply(SchedulerSettings(32, 256, 256, 7), {})

    messages = restore_second_copy(lock, scheduler, scheduler)
    assert [changes.get("max_waiting") for changes in received] == [None, 7]
    assert messages == ["copy 2 is serving again"]


@pytest.mark.parametrize("step", [1, -1], ids=["no other copy replies", "the restarted copy does not reply"])
def test_a_copy_that_cannot_get_the_settings_is_reported(step: int, tmp_path: Path) -> None:
    in_force = SchedulerReply(SchedulerSettings(32, 256, 256, 7), {})
    schedulers = [lambda *_: None, lambda *_: in_force]
    warning, serving = restore_second_copy(tmp_path / "lock", *schedulers[::step])
    assert warning.startswith("warning: copy 2 keeps the scheduler settings it started with: ")
    assert serving == "copy 2 is serving again"
