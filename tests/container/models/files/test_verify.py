"""Verification of a cached copy against its remote (`lmi prepare --verify`)."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from container.models import files as model_files
from container.models.errors import RemoteUnreachable
from container.models.files import fetch
from container.models.files.remote import Verification
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.container.models.files.s3_lab import S3Lab, same
from tests.container.models.files.test_fetch import ScriptedRemote, contents


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def verify(remote: ScriptedRemote, cache: Path) -> tuple[Path, str]:
    """Return (folder, log)."""
    log = io.StringIO()
    return fetch.verify(remote, cache, LogLines(log)), log.getvalue()


def obtain(remote: ScriptedRemote, cache: Path) -> Path:
    return fetch.obtain(remote, cache, LogLines(io.StringIO()))


def test_an_intact_copy_is_reported_and_not_modified(cache: Path) -> None:
    folder = obtain(ScriptedRemote(), cache)
    inode = folder.stat().st_ino
    remote = ScriptedRemote()
    again, log = verify(remote, cache)
    assert again == folder
    assert folder.stat().st_ino == inode
    assert remote.fetched == []
    assert "3 files (config.json, ...): verified by sha256" in log


def test_a_damaged_file_of_the_right_size_is_fetched_again(cache: Path) -> None:
    folder = obtain(ScriptedRemote(), cache)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    remote = ScriptedRemote()
    again, log = verify(remote, cache)
    assert again == folder
    assert contents(folder) == remote.files
    assert remote.fetched == ["model.safetensors"]
    assert "sha256 differs" in log
    assert str(weights) in log


def test_a_copy_that_cannot_be_verified_is_reported(cache: Path) -> None:
    remote = ScriptedRemote(verification=Verification("", "there is no checksum"))
    obtain(remote, cache)
    assert "NOT VERIFIED: there is no checksum" in verify(remote, cache)[1]


def test_verification_requires_a_connection(cache: Path) -> None:
    obtain(ScriptedRemote(), cache)
    with pytest.raises(RemoteUnreachable):
        verify(ScriptedRemote(listing_error=RemoteUnreachable("no network")), cache)


def test_a_local_model_cannot_be_verified_or_pruned(tmp_path: Path) -> None:
    source = ModelSource(model_id=str(tmp_path))
    for action in (model_files.verify, lambda source, view: model_files.prune(view, source)):
        with pytest.raises(model_files.ModelNotAvailable, match="is a local model"):
            action(source, LogLines(io.StringIO()))


def test_a_copy_from_s3_that_is_damaged_on_disk_is_repaired(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    folder, _ = s3.obtain()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(12_000_000)
        file.write(b"damage")
    s3.proxy.heal()
    process = s3.start(options=["--verify", "--prune"])
    out, log = process.communicate()
    assert process.returncode == 0, log
    assert out == f"{folder}\n"
    assert same(folder, small_model)
    assert "model.safetensors: the file differs from the object in S3 (CRC32 differs)" in log
    assert "config.json" in log
    assert "verified by CRC32" in log
    assert s3.proxy.object_bytes == (small_model / "model.safetensors").stat().st_size
