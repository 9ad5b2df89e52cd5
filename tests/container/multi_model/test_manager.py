"""Loading, unloading and restarting models with in-process servers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from container.multi_model import manager as manager_module
from container.multi_model import served_model
from container.multi_model.errors import AlreadyLoaded, BadModel, ModelNotFound, NoMemory
from container.multi_model.manager import ModelManager
from container.multi_model.memory import Room
from container.multi_model.served_model import MemoryNeed, ModelState, ServedModel
from engines.errors import Unavailable
from tests.container.multi_model.fakes import FakeModels, load, served_by, states
from tests.support.logs import Logs
from tests.support.waiting import wait_until


def test_a_name_cannot_be_loaded_twice_even_while_loading(lab: FakeModels) -> None:
    lab.healthy.clear()
    manager = lab.manager()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(load, manager, "a")
        wait_until(lambda: lab.up() == ["a"])
        with pytest.raises(AlreadyLoaded, match="loading"):
            load(manager, "a")
        with pytest.raises(Unavailable, match="is loading"):
            manager.lease("a")
        lab.healthy.set()
        first.result()
    with pytest.raises(AlreadyLoaded, match="ready"):
        load(manager, "a")
    assert len(lab.servers) == 1


def test_a_folder_is_also_found_by_lmis_name_if_no_other_has_it(lab: FakeModels) -> None:
    manager = lab.manager("llama-3.1", "llama_3.1", "qwen-2.5", "qwen_2_5", "gemma-2")
    assert manager.model("gemma_2").name == "gemma-2"
    assert manager.model("qwen_2_5").name == "qwen_2_5"
    with pytest.raises(ModelNotFound, match="did you mean"):
        manager.model("llama_3_1")
    with pytest.raises(ModelNotFound):
        lab.loaded("gemma-2").unload("gemma_2")


def test_concurrent_loads_do_not_use_the_same_memory(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = threading.Event()

    def predict(folder: Path, room: Room) -> MemoryNeed:
        predicted.wait(0.02)  # time for the other loads to see the same free memory
        return MemoryNeed(10)

    monkeypatch.setattr(lab, "predict", predict)
    manager = lab.manager(limit=10)
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, manager, name) for name in "abcd"]
        rejected = [isinstance(each.exception(), NoMemory) for each in loads]
    assert sorted(rejected) == [False, True, True, True]
    assert len(lab.up()) == 1


def test_measured_memory_counts_if_it_exceeds_the_prediction(lab: FakeModels) -> None:
    manager = lab.loaded("a", limit=25)
    lab.taken[lab.servers[0].pid] = 16
    with pytest.raises(NoMemory):
        load(manager, "b")


def test_reserved_memory_is_not_free(lab: FakeModels) -> None:
    """The machine still reports the memory as free, because the model does not use it yet."""
    lab.free = 25
    manager = lab.loaded("a")
    lab.taken[lab.servers[0].pid] = 4
    lab.free = 21
    load(manager, "b")
    with pytest.raises(NoMemory):
        load(manager, "c")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("the model's server ended with exit code 1: Error: option.dtype: got fp17", BadModel),
        ("the model's server was killed by SIGKILL (kill -9, or the kernel when out of memory)", NoMemory),
        ("the engine failed: CUDA out of memory. Tried to allocate 2 GiB", NoMemory),
    ],
)
def test_a_failed_load_reports_the_reason_and_leaves_no_server(
    lab: FakeModels, reason: str, kind: type[Exception]
) -> None:
    lab.broken["a"] = reason
    manager = lab.manager()
    with pytest.raises(kind) as caught:
        load(manager, "a")
    assert str(caught.value) == reason
    assert lab.up() == []
    assert states(manager) == {}
    lab.broken.clear()
    load(manager, "a")


def test_unloading_waits_for_requests_in_flight(lab: FakeModels) -> None:
    manager = lab.loaded("a")
    lease = manager.lease("a")
    with ThreadPoolExecutor(1) as pool:
        unloading = pool.submit(manager.unload, "a")
        wait_until(lambda: states(manager) == {"a": "unloading"})
        with pytest.raises(ModelNotFound, match="unloading"):
            manager.lease("a")
        assert lab.up() == ["a"]
        lease.release()
        lease.release()  # has no effect
        unloading.result()
    assert lab.up() == []
    assert states(manager) == {}


def test_unloading_waits_only_so_long_for_requests_in_flight(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "_DRAIN_SECONDS", 0.01)
    manager = lab.loaded("a")
    lease = manager.lease("a")
    manager.unload("a")
    assert lab.up() == []
    lease.release()


def test_unloading_cancels_a_load(lab: FakeModels) -> None:
    lab.healthy.clear()
    manager = lab.manager()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, manager, "a")
        wait_until(lambda: lab.up() == ["a"])
        manager.unload("a")
        with pytest.raises(Unavailable, match="stopped while it was loading"):
            loading.result()
    assert lab.up() == []
    assert states(manager) == {}


def test_the_least_recently_used_model_is_evicted(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", "c", limit=20)
    for name in ("a", "b", "a", "c"):
        assert served_by(manager, name) == name
    assert lab.up() == ["a", "c"]
    assert states(manager) == {"a": "ready", "b": "down", "c": "ready"}
    assert served_by(manager, "b") == "b"
    assert lab.up() == ["c", "b"]
    with pytest.raises(ModelNotFound):
        manager.lease("d")


def test_an_idle_model_is_evicted_before_a_busy_one_that_was_used_earlier(lab: FakeModels) -> None:
    manager = lab.manager("busy", "idle", "new", limit=20)
    lease = manager.lease("busy")
    assert served_by(manager, "idle") == "idle"
    with ThreadPoolExecutor(1) as pool:
        new = pool.submit(served_by, manager, "new")
        wait_until(lambda: new.done() or "unloading" in states(manager).values())
        lease.release()
        assert new.result() == "new"
    assert lab.up() == ["busy", "new"]


def test_several_models_are_evicted_for_a_large_one(lab: FakeModels) -> None:
    lab.needs["large"] = 25
    manager = lab.manager("a", "b", "large", limit=30)
    for name in ("a", "b", "large"):
        assert served_by(manager, name) == name
    assert lab.up() == ["large"]


@pytest.mark.parametrize("limit", [30, None])
def test_no_model_is_evicted_for_one_that_would_not_fit_anyway(lab: FakeModels, limit: int | None) -> None:
    lab.needs["huge"] = 31
    manager = lab.manager("a", "b", "huge", limit=limit)
    for number, name in enumerate(("a", "b")):
        assert served_by(manager, name) == name
        lab.taken[lab.servers[number].pid] = 10
    lab.free = 10
    with pytest.raises(NoMemory, match="would be free without the other models"):
        manager.lease("huge")
    assert lab.up() == ["a", "b"]


def test_a_model_in_use_is_evicted_once_it_is_idle(lab: FakeModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "_DRAIN_SECONDS", 0.01)
    manager = lab.manager("a", "b", limit=10)
    lease = manager.lease("a")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(served_by, manager, "b")
        wait_until(lambda: states(manager)["a"] == "unloading")
        with pytest.raises(TimeoutError):
            other.result(0.2)
        assert lab.up() == ["a"]
        lease.release()
        assert other.result() == "b"


def test_requests_that_wait_for_a_model_share_its_server(lab: FakeModels) -> None:
    lab.healthy.clear()
    manager = lab.manager("a")
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(served_by, manager, "a") for _ in range(4)]
        wait_until(lambda: lab.up() == ["a"])
        lab.healthy.set()
        assert {future.result() for future in futures} == {"a"}
    assert len(lab.servers) == 1


def test_models_are_loaded_at_startup_as_far_as_memory_suffices(lab: FakeModels, logs: Logs) -> None:
    lab.broken["b"] = "its files are broken"
    lab.needs["_"] = 26
    manager = lab.manager("_", "a", "b", "c", "d", limit=25)
    manager.load_all()
    assert states(manager) == {"_": "down", "a": "ready", "b": "down", "c": "ready", "d": "down"}
    assert "start-up is complete: _ (down), a (ready), b (down), c (ready), d (down)" in logs.messages
    with pytest.raises(Unavailable, match="its files are broken"):
        manager.lease("b")
    assert served_by(manager, "d") == "d"


@pytest.mark.parametrize("on_demand", [True, False])
def test_a_model_whose_server_dies_is_restarted(
    lab: FakeModels, on_demand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(served_model, "monotonic", lambda: now)
    manager = lab.manager("a", "b") if on_demand else lab.loaded("a", "b")
    assert served_by(manager, "b") == served_by(manager, "b") == "b"
    assert served_by(manager, "a") == "a"
    died = next(server for server in lab.servers if server.folder.name == "a")
    died.dead = "the model's server was killed by SIGKILL"
    with pytest.raises(Unavailable, match="has failed: the model's server was killed by SIGKILL"):
        manager.lease("a")
    assert states(manager) == {"a": "down", "b": "ready"}
    assert manager.model("a").failure == died.dead
    assert served_by(manager, "b") == "b"
    now += 1.0
    assert served_by(manager, "a") == "a"
    assert manager.model("a").failure == ""


def test_each_consecutive_failure_doubles_the_restart_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(served_model, "monotonic", lambda: now)
    model = ServedModel("a", Path("/models/a"))
    delays = []
    for served in (0, 1, 1, 1, 1, 1, 1, 1, 60):
        model.mark_ready()
        now += served
        model.mark_down("it died")
        delays.append(model.retry_at - now)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 1]
    model.mark_loading()
    model.mark_down()
    assert model.retry_at == now + 1


def test_closing_stops_all_servers_and_rejects_requests(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", "c")
    manager.load_all()
    manager.close()
    manager.close()
    assert lab.up() == []
    # A second signal would abort running requests.
    assert [server.signals for server in lab.servers] == [1, 1, 1]
    with pytest.raises(Unavailable, match="shutting down"):
        manager.lease("a")


def test_closing_cancels_loads(lab: FakeModels) -> None:
    lab.healthy.clear()
    manager = lab.manager("a")
    with ThreadPoolExecutor(1) as pool:
        lease = pool.submit(manager.lease, "a")
        wait_until(lambda: lab.up() == ["a"])
        manager.close()
        with pytest.raises(Unavailable):
            lease.result()
    assert lab.up() == []


def test_concurrent_requests_get_the_right_model_within_the_memory_limit(lab: FakeModels) -> None:
    names = "abcdef"
    manager = lab.manager(*names, limit=30)
    with ThreadPoolExecutor(8) as pool:
        requested = random.Random(1).choices(names, k=120)
        assert list(pool.map(lambda name: served_by(manager, name), requested)) == requested
    assert max(lab.num_up) == 3
    assert all(model.in_flight == 0 for model in manager.models())
    manager.close()
    assert {model.state for model in manager.models()} <= {ModelState.READY, ModelState.DOWN}


_OUT_OF_MEMORY = "the weights take 2.0 GiB in memory, but only 1.0 GiB are free"


def test_a_model_that_runs_out_of_memory_is_loaded_again_after_an_eviction(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", "c", limit=30)
    assert [served_by(manager, name) for name in ("a", "b")] == ["a", "b"]
    lab.broken_once["c"] = _OUT_OF_MEMORY
    assert served_by(manager, "c") == "c"
    assert lab.up() == ["b", "c"]


def test_a_model_that_keeps_running_out_of_memory_is_loaded_again_only_once(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", "c", limit=30)
    assert [served_by(manager, name) for name in ("a", "b")] == ["a", "b"]
    lab.broken["c"] = _OUT_OF_MEMORY
    with pytest.raises(NoMemory, match=r"only 1\.0 GiB are free"):
        manager.lease("c")
    assert [server.folder.name for server in lab.servers] == ["a", "b", "c", "c"]
    assert lab.up() == ["b"]


def test_no_model_is_evicted_for_one_that_fails_for_another_reason(lab: FakeModels) -> None:
    manager = lab.manager("a", "b", limit=30)
    assert served_by(manager, "a") == "a"
    lab.broken["b"] = "its files are broken"
    with pytest.raises(Unavailable, match="its files are broken"):
        manager.lease("b")
    assert [server.folder.name for server in lab.servers] == ["a", "b"]
    assert lab.up() == ["a"]


@contextmanager
def watched(manager: ModelManager, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the models of a manager all the time, then close it."""
    monkeypatch.setattr(manager_module, "CHECK_INTERVAL", 0.01)
    thread = threading.Thread(target=manager.watch)
    thread.start()
    try:
        yield
    finally:
        manager.close()
        thread.join()


def test_a_model_that_hangs_is_handled_as_one_that_died(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = lab.loaded("a", "b")
    with watched(manager, monkeypatch):
        lab.servers[0].hang = "the model's server hangs: no response to /ping (TimeoutError)"
        wait_until(lambda: lab.up() == ["b"])
        assert manager.model("a").failure == lab.servers[0].hang
        assert states(manager) == {"a": "down", "b": "ready"}


def test_a_model_that_hangs_is_evicted_despite_its_requests(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = lab.manager("a", "b", limit=10)
    lease = manager.lease("a")
    with watched(manager, monkeypatch), ThreadPoolExecutor(1) as pool:
        other = pool.submit(served_by, manager, "b")
        wait_until(lambda: states(manager)["a"] == "unloading")
        lab.servers[0].hang = "the model's server hangs: no response to /ping (TimeoutError)"
        assert other.result() == "b"
        lease.release()
