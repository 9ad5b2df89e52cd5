"""`lmi prepare` with a hub id in separate processes: output, errors, and files left on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import Fault, HubServer
from tests.support.model_files import content, model, prepare, start_prepare
from tests.support.waiting import wait_until

ID = "owner/tiny"
STORE = "model.safetensors/"
NOWHERE = "http://no-such-host.invalid"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.commit(ID, model(size_bytes=4 << 20))
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_folder_is_printed_and_nothing_else_is_written_or_requested(hub: HubServer, cache: Path) -> None:
    result = prepare(ID, cache, hub.url, patient=True)
    assert result.returncode == 0, result.stderr
    assert content(Path(result.stdout.splitlines()[-1])) == model(size_bytes=4 << 20)
    assert [path.name for path in cache.parent.iterdir()] == ["cache"]
    assert [path for path in hub.paths() if ID not in path] == []
    assert not any("torch" in seen.headers["user-agent"] for seen in hub.seen)


def test_two_concurrent_processes_download_once(hub: HubServer, cache: Path) -> None:
    running = [start_prepare(ID, cache, hub.url, patient=True) for _ in range(2)]
    outputs = [process.communicate(timeout=600) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert hub.body_bytes == sum(map(len, model(size_bytes=4 << 20).values()))


def test_a_killed_fetch_is_never_served_and_the_next_one_resumes(hub: HubServer, cache: Path) -> None:
    hub.break_next(Fault(STORE, stall_after=3 << 20))
    process = start_prepare(ID, cache, hub.url, patient=True)

    def written() -> int:
        return max((path.stat().st_size for path in cache.rglob("*.safetensors")), default=0)

    wait_until(lambda: written() >= 2.9 * (1 << 20))
    process.kill()
    process.communicate()
    assert list((cache / "models").glob("[!.]*")) == []
    again = prepare(ID, cache, hub.url, patient=True)
    assert again.returncode == 0, again.stderr
    assert content(Path(again.stdout.splitlines()[-1])) == model(size_bytes=4 << 20)
    assert hub.body_bytes < 1.1 * (4 << 20)


@pytest.mark.parametrize(
    ("endpoint", "environment", "words"),
    [
        (NOWHERE, {}, f"cannot resolve the host name of {NOWHERE}"),
        pytest.param(
            "http://127.0.0.1:1", {}, "cannot connect to http://127.0.0.1:1", marks=pytest.mark.long
        ),
        ("http://127.0.0.1:x", {}, "HF_ENDPOINT=http://127.0.0.1:x is not an address"),
        (NOWHERE, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        (NOWHERE, {"HF_HUB_ETAG_TIMEOUT": "soon"}, "HF_... environment variable has an invalid value"),
        ("silent", {}, "did not respond in time"),
    ],
)
def test_without_network_and_copy_the_error_is_one_line(
    endpoint: str, environment: dict[str, str], words: str, hub: HubServer, cache: Path
) -> None:
    hub.break_next(Fault("/api/", times=9, before=lambda: hub.closing.wait(30)))
    result = prepare(ID, cache, hub.url if endpoint == "silent" else endpoint, **environment)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_network_the_cached_copy_is_used_with_a_note(hub: HubServer, cache: Path) -> None:
    first = prepare(ID, cache, hub.url, patient=True)
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        again = prepare(ID, cache, NOWHERE, **environment)
        assert (again.returncode, again.stdout) == (0, first.stdout)
        assert "note: " in again.stderr
        assert "using the cached copy" in again.stderr
