"""The refusal of a busy machine."""

from __future__ import annotations

import pytest

from tests.bench.quiet import Busy, Load, await_quiet, look

BUSY = Load(0.75, ("compiler (12): 0.70",))
CALM = Load(0.02, ())


def test_it_waits_until_others_have_ended() -> None:
    seen = iter([BUSY, BUSY, CALM])
    assert await_quiet(60.0, lambda: next(seen)) is CALM


def test_a_machine_that_stays_busy_is_refused_with_the_reason() -> None:
    with pytest.raises(Busy, match=r"other processes keep 0\.75 cores busy; compiler \(12\): 0\.70"):
        await_quiet(0.0, lambda: BUSY)


def test_a_look_measures_this_machine() -> None:
    assert 0.0 <= look(0.01).cores < 1e6
