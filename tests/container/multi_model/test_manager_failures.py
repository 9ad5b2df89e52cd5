"""Models that run out of memory while they load, with in-process servers."""

from __future__ import annotations

import pytest

from container.multi_model.errors import NoMemory
from engines.errors import Unavailable
from tests.container.multi_model.fakes import FakeModels, served_by

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
