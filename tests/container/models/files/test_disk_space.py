"""Disk space: a fetch needs room for what is missing, and leaves a reserve."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from container.models.errors import ModelNotAvailable, RemoteUnreachable
from container.models.files import fetch
from container.progress import LogLines
from tests.container.models.files.scripted_remote import ScriptedRemote, contents, unfinished_fetches


def obtain(remote: ScriptedRemote, cache: Path) -> Path:
    return fetch.obtain(remote, cache, LogLines(io.StringIO()))


def interrupt_fetch(cache: Path) -> None:
    with pytest.raises(RemoteUnreachable):
        obtain(ScriptedRemote(break_at={"model.safetensors": RemoteUnreachable("gone")}), cache)


def set_free(num_bytes: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=num_bytes))


def test_disk_space_is_checked_before_fetching(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(5 << 20, monkeypatch)
    remote = ScriptedRemote()
    with pytest.raises(ModelNotAvailable, match="has 5 MiB free") as caught:
        obtain(remote, cache)
    assert "LMI_CACHE_DIR" in str(caught.value)
    assert remote.fetched == []
    assert unfinished_fetches(cache) == []


def test_a_resume_without_enough_disk_space_keeps_the_bytes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_fetch(cache)
    with monkeypatch.context() as patched:
        set_free(5 << 20, patched)
        with pytest.raises(ModelNotAvailable, match="has 5 MiB free"):
            obtain(ScriptedRemote(), cache)
    remote = ScriptedRemote()
    assert contents(obtain(remote, cache)) == remote.files
    size = len(remote.files["model.safetensors"])
    assert remote.num_bytes == size - size // 2


@pytest.mark.parametrize("complete", [False, True])
def test_bytes_on_the_disk_need_no_more_space(
    complete: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of an interrupted fetch, and those of a copy without a file."""
    if complete:
        (obtain(ScriptedRemote(), cache) / "config.json").unlink()
    else:
        interrupt_fetch(cache)
    set_free(fetch._RESERVE_BYTES, monkeypatch)
    assert contents(obtain(ScriptedRemote(), cache)) == ScriptedRemote().files
