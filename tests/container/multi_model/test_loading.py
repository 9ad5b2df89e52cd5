"""Models that run out of memory while they load, and the time limit of loading, with in-process servers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from container.multi_model import served_model
from container.multi_model.errors import BadModel, NoMemory
from engines.errors import Unavailable
from tests.container.multi_model.fakes import FakeModels, load, served_by, states
from tests.support.waiting import wait_until

OUT_OF_MEMORY = "the weights take 2.0 GiB in memory, but only 1.0 GiB are free"


def close_gates(lab: FakeModels, *names: str) -> None:
    for name in names:
        lab.gates[name] = threading.Event()


def test_two_models_that_run_out_of_memory_do_not_wait_for_each_other(lab: FakeModels) -> None:
    manager = lab.manager("a", "b")
    close_gates(lab, "a", "b")
    lab.broken_once.update(a=OUT_OF_MEMORY, b=OUT_OF_MEMORY)
    with ThreadPoolExecutor(2) as pool, closing(manager):
        waiting = [pool.submit(served_by, manager, name) for name in "ab"]
        wait_until(lambda: sorted(lab.up()) == ["a", "b"])
        lab.gates["a"].set()
        wait_until(lambda: lab.up() == ["b"])
        lab.gates["b"].set()
        wait_until(lambda: all(each.done() for each in waiting))
        errors = [each.exception() for each in waiting]
        assert None in errors, "one of them has all memory for its second attempt"
        assert all(isinstance(error, NoMemory | None) for error in errors)


def test_a_model_that_runs_out_of_memory_does_not_block_one_that_waits_for_it(lab: FakeModels) -> None:
    """`large` needs the memory of both others. `b` fails while `large` waits for the requests of `a`."""
    lab.needs["large"] = 20
    manager = lab.manager("a", "b", "large", limit=20)
    close_gates(lab, "b")
    lab.broken_once["b"] = OUT_OF_MEMORY
    lease = manager.lease("a")
    with ThreadPoolExecutor(2) as pool, closing(manager):
        failing = pool.submit(served_by, manager, "b")
        wait_until(lambda: lab.up() == ["a", "b"])
        large = pool.submit(served_by, manager, "large")
        wait_until(lambda: states(manager)["a"] == "unloading")
        lab.gates["b"].set()
        wait_until(lambda: lab.up() == ["a"])
        lease.release()
        wait_until(lambda: large.done() and failing.done())
        assert large.result() == "large"
        assert isinstance(failing.exception(), NoMemory | None)


def test_a_model_that_runs_out_of_memory_is_not_loaded_again_at_once(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(served_model, "monotonic", lambda: now)
    manager = lab.manager("a", "b")
    lab.broken["a"] = OUT_OF_MEMORY
    for delay in (1.0, 2.0):
        with pytest.raises(NoMemory, match=OUT_OF_MEMORY):
            manager.lease("a")
        assert manager.model("a").failure == OUT_OF_MEMORY
        assert manager.model("a").retry_at == now + delay
        num_starts = len(lab.servers)
        with pytest.raises(Unavailable, match=f"has failed: {OUT_OF_MEMORY}"):
            manager.lease("a")
        assert len(lab.servers) == num_starts
        now += delay
    lab.broken.clear()
    assert served_by(manager, "a") == "a"


def test_a_model_without_room_is_loaded_as_soon_as_there_is_room(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", limit=20)
    lab.needs["a"] = 21
    with pytest.raises(NoMemory, match="no room"):
        manager.lease("a")
    assert manager.model("a").failure == ""
    lab.needs["a"] = 20
    assert served_by(manager, "a") == "a"


def test_the_error_of_a_model_without_room_has_sizes_without_an_exponent(lab: FakeModels) -> None:
    manager = lab.manager("a", "b")
    lab.free, lab.needs["a"] = 999_600_000, 1_374_000_000_000
    with pytest.raises(NoMemory, match="the model needs 1370 GB of memory, but only 1 GB are free"):
        manager.lease("a")


def test_the_limit_of_all_models_is_named_if_it_decides(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", limit=2_100_000_000)
    lab.free, lab.needs["a"] = 100_000_000_000, 3_200_000_000
    words = "the model needs 3.2 GB of memory, but LMI_MODELS_MEMORY_MB leaves only 2.1 GB"
    with pytest.raises(NoMemory, match=f"{words}$"):
        manager.lease("a")
    lab.needs["b"] = 1_000_000_000
    assert served_by(manager, "b") == "b"
    with pytest.raises(NoMemory, match=f"{words} without the other models$"):
        manager.lease("a")


def test_only_the_platform_limits_the_time_of_a_download(lab: FakeModels) -> None:
    """The model's own server applies `option.model_loading_timeout`, which begins after the download."""
    lab.loading_seconds = 1e6
    assert served_by(lab.manager("a", "b"), "a") == "a"
    with pytest.raises(BadModel, match="within 360 s"):
        load(lab.manager(loading_limit=360.0), "a")
