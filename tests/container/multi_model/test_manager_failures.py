"""Models that run out of memory while they load, and models that hang, with in-process servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from container.multi_model import manager as manager_module
from container.multi_model.errors import NoMemory
from container.multi_model.manager import ModelManager
from engines.errors import Unavailable
from tests.container.multi_model.fakes import FakeModels, load, served_by, states
from tests.support.waiting import wait_until

_OUT_OF_MEMORY = "the weights take 2.0 GiB in memory, but only 1.0 GiB are free"


def test_a_model_that_runs_out_of_memory_is_loaded_again_after_an_eviction() -> None:
    lab = FakeModels(limit=30)
    manager = lab.manager("a", "b", "c")
    assert [served_by(manager, name) for name in ("a", "b")] == ["a", "b"]
    lab.broken_once["c"] = _OUT_OF_MEMORY
    assert served_by(manager, "c") == "c"
    assert lab.up() == ["b", "c"]
    manager.close()


def test_a_model_that_keeps_running_out_of_memory_is_loaded_again_only_once() -> None:
    lab = FakeModels(limit=30)
    manager = lab.manager("a", "b", "c")
    assert [served_by(manager, name) for name in ("a", "b")] == ["a", "b"]
    lab.broken["c"] = _OUT_OF_MEMORY
    with pytest.raises(NoMemory, match=r"only 1\.0 GiB are free"):
        manager.lease("c")
    assert [server.folder.name for server in lab.servers] == ["a", "b", "c", "c"]
    assert lab.up() == ["b"]
    manager.close()


def test_no_model_is_evicted_for_one_that_fails_for_another_reason() -> None:
    lab = FakeModels(limit=30)
    manager = lab.manager("a", "b")
    assert served_by(manager, "a") == "a"
    lab.broken["b"] = "its files are broken"
    with pytest.raises(Unavailable, match="its files are broken"):
        manager.lease("b")
    assert [server.folder.name for server in lab.servers] == ["a", "b"]
    assert lab.up() == ["a"]
    manager.close()


@contextmanager
def watched(manager: ModelManager, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the models of a manager all the time, then close it."""
    monkeypatch.setattr(manager_module, "_CHECK_SECONDS", 0.01)
    thread = threading.Thread(target=manager.watch)
    thread.start()
    try:
        yield
    finally:
        manager.close()
        thread.join()


def test_a_model_that_hangs_is_handled_as_one_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = FakeModels()
    manager = lab.manager()
    load(manager, "a", "b")
    with watched(manager, monkeypatch):
        lab.servers[0].hang = "the model's server hangs: no response to /ping (TimeoutError)"
        wait_until(lambda: lab.up() == ["b"])
        assert manager.model("a").failure == lab.servers[0].hang
        assert states(manager) == {"a": "down", "b": "ready"}


def test_a_model_that_hangs_is_evicted_despite_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = FakeModels(limit=10)
    manager = lab.manager("a", "b")
    lease = manager.lease("a")
    with watched(manager, monkeypatch), ThreadPoolExecutor(1) as pool:
        other = pool.submit(served_by, manager, "b")
        wait_until(lambda: states(manager)["a"] == "unloading")
        lab.servers[0].hang = "the model's server hangs: no response to /ping (TimeoutError)"
        assert other.result() == "b"
        lease.release()
