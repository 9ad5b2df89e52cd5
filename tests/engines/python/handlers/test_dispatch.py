"""Workers that cannot load the handler while others serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.python.handlers.dispatch import GROW_AGAIN_SECONDS
from engines.python.request_loop import MAX_DEATHS, EngineFailed
from tests.engines.python.handlers.dispatch_lab import Lab, Turn, invoke


def test_an_extra_worker_that_cannot_load_is_dropped_and_retried_later(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (first,) = lab.workers
        first.ready(accepts_concurrent_calls=False)
        yield invoke("a", "b")
        for tries in range(1, MAX_DEATHS + 2):
            assert len(lab.workers) == 1 + tries
            extra = lab.workers[-1]
            assert extra.number == 1
            extra.cannot_load()
            yield []
            assert extra.closed
            assert not extra.restarts
            lab.clock.now += GROW_AGAIN_SECONDS - 1
            yield []
            assert len(lab.workers) == 1 + tries, "too early"
            lab.clock.now += 1
            yield []
        first.answer("a")
        yield []
        assert first.calls == [["a"], ["b"]]
        first.answer("b")
        yield []
        assert lab.errors == {"a": "", "b": ""}

    Lab(tmp_path, 1, timeout=3600.0).play(scenario)


def test_an_extra_worker_whose_load_times_out_is_dropped(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (first,) = lab.workers
        first.ready(accepts_concurrent_calls=False)
        yield invoke("a", "b")
        extra = lab.workers[-1]
        lab.clock.now += lab.loading_timeout
        extra.cannot_load()
        yield []
        assert extra.closed
        assert len(lab.workers) == 2

    Lab(tmp_path, 1, timeout=3600.0).play(scenario)


def test_a_working_worker_does_not_hide_another_that_cannot_load(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        first, second = lab.workers
        first.ready(accepts_concurrent_calls=False)
        second.ready(accepts_concurrent_calls=False)
        yield []
        second.end()
        for name in "abc":
            yield invoke(name)
            first.answer(name)
            second.cannot_load()
        yield []

    with pytest.raises(EngineFailed, match=r"worker 1 ended while loading.*out of memory"):
        Lab(tmp_path, 2).play(scenario)
