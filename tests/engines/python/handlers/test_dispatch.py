"""Workers of a handler that cannot load it, while others serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.python.handlers.dispatch import GROW_AGAIN_SECONDS
from engines.python.request_loop import MAX_DEATHS, EngineFailed
from tests.engines.python.handlers.dispatch_lab import Lab, Turn, invoke


def test_a_further_worker_that_cannot_load_is_dropped_and_tried_again_later(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (first,) = lab.workers
        first.ready(accepts_concurrent_calls=False)
        yield invoke("a", "b")
        for tries in range(1, MAX_DEATHS + 2):
            assert len(lab.workers) == 1 + tries
            further = lab.workers[-1]
            assert further.number == 1
            further.cannot_load()
            yield []
            assert further.closed
            assert not further.restarts
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


def test_a_further_worker_that_loads_for_too_long_is_dropped(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (first,) = lab.workers
        first.ready(accepts_concurrent_calls=False)
        yield invoke("a", "b")
        further = lab.workers[-1]
        lab.clock.now += lab.loading_timeout
        further.cannot_load()
        yield []
        assert further.closed
        assert len(lab.workers) == 2

    Lab(tmp_path, 1, timeout=3600.0).play(scenario)


def test_answers_of_one_worker_do_not_excuse_another_that_cannot_load(tmp_path: Path) -> None:
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
