"""Comparing the files of a copy with the remote: `lmi prepare --verify`."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from container.models.errors import RemoteUnreachable
from container.models.files import fetch
from container.models.files.remote import RemoteFile, Report, Verification
from container.progress import LogLines
from tests.container.models.files.scripted_remote import (
    FILES,
    SHARDS,
    Obtain,
    Obtained,
    ScriptedRemote,
    contents,
    unfinished_fetches,
)


def verify(remote: ScriptedRemote, cache: Path) -> Obtained:
    log = io.StringIO()
    return Obtained(fetch.verify(remote, cache, LogLines(log)), log.getvalue())


def test_verification_of_an_intact_copy_does_not_modify_it(obtain: Obtain, cache: Path) -> None:
    folder = obtain(ScriptedRemote()).folder
    inode = folder.stat().st_ino
    remote = ScriptedRemote()
    again, log = verify(remote, cache)
    assert again == folder
    assert folder.stat().st_ino == inode
    assert remote.fetched == []
    assert f"{FILES}: verified by sha256" in log


def test_a_damaged_file_of_the_right_size_is_fetched_again(obtain: Obtain, cache: Path) -> None:
    folder = obtain(ScriptedRemote()).folder
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    remote = ScriptedRemote()
    again, log = verify(remote, cache)
    assert again == folder
    assert contents(folder) == remote.files
    assert remote.fetched == ["model.safetensors"]
    assert "sha256 differs" in log
    assert str(weights) in log


def test_a_copy_that_cannot_be_verified_is_reported(obtain: Obtain, cache: Path) -> None:
    remote = ScriptedRemote(verification=Verification("", "there is no checksum"))
    obtain(remote)
    assert "NOT VERIFIED: there is no checksum" in verify(remote, cache).log


def test_verification_requires_a_connection(obtain: Obtain, cache: Path) -> None:
    obtain(ScriptedRemote())
    with pytest.raises(RemoteUnreachable):
        verify(ScriptedRemote(listing_error=RemoteUnreachable("no network")), cache)


@pytest.mark.parametrize("deleted", [True, False], ids=["after a deletion", "after an interruption"])
def test_verification_compares_the_files_of_an_incomplete_copy(
    deleted: bool, obtain: Obtain, cache: Path
) -> None:
    folder = obtain(ScriptedRemote(files=SHARDS)).folder
    for shard in ("m1.safetensors", "m2.safetensors"):
        (folder / shard).write_bytes(bytes(len(SHARDS[shard])))
    remote = ScriptedRemote(files=SHARDS)
    if deleted:
        (folder / "m1.safetensors").unlink()
    else:
        remote.verify_errors["m2.safetensors"] = RemoteUnreachable("gone")
        with pytest.raises(RemoteUnreachable):
            verify(remote, cache)
        assert not (folder / "m1.safetensors").exists()
        remote.verify_errors.clear()
    verify(remote, cache)
    assert contents(folder) == SHARDS


def test_verification_compares_the_files_of_an_interrupted_fetch(obtain: Obtain, cache: Path) -> None:
    with pytest.raises(RemoteUnreachable):
        obtain(ScriptedRemote(files=SHARDS, break_at={"m2.safetensors": RemoteUnreachable("gone")}))
    (shard,) = cache.glob("models/.remote/*.part/m1.safetensors")
    shard.write_bytes(bytes(len(SHARDS[shard.name])))
    assert contents(verify(ScriptedRemote(files=SHARDS), cache).folder) == SHARDS


@dataclass
class WatchedRemote(ScriptedRemote):
    """A remote that looks into a copy's folder whenever a file is fetched."""

    folder: Path = Path()
    seen: list[set[str]] = field(default_factory=list)

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        self.seen.append(set(contents(self.folder)))
        return super().fetch(file, target, report)


def test_a_copy_is_completed_in_place_because_a_server_may_use_it(obtain: Obtain, cache: Path) -> None:
    folder = obtain(ScriptedRemote(files=SHARDS)).folder
    inode, damaged = folder.stat().st_ino, "m2.safetensors"
    (folder / "config.json").write_bytes(b"cut off")
    remote = WatchedRemote(files=SHARDS, folder=folder)
    obtain(remote)
    (folder / damaged).write_bytes(bytes(len(SHARDS[damaged])))
    remote.break_at[damaged] = RemoteUnreachable("gone")
    with pytest.raises(RemoteUnreachable):
        verify(remote, cache)
    remote.break_at.clear()
    verify(remote, cache)
    assert remote.fetched == ["config.json", damaged, damaged]
    assert remote.seen == [set(SHARDS), set(SHARDS) - {damaged}, set(SHARDS) - {damaged}]
    assert contents(folder) == SHARDS
    assert folder.stat().st_ino == inode
    assert unfinished_fetches(cache) == []
