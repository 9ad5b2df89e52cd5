"""A copy in the cache is compared with its remote again (`lmi prepare --verify`)."""

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


def verified(remote: ScriptedRemote, cache: Path) -> tuple[Path, str]:
    """(folder, what was said)."""
    said = io.StringIO()
    return fetch.verify(remote, cache, LogLines(said)), said.getvalue()


def obtained(remote: ScriptedRemote, cache: Path) -> Path:
    return fetch.obtain(remote, cache, LogLines(io.StringIO()))


def test_a_good_copy_is_said_to_be_good_and_left_alone(cache: Path) -> None:
    folder = obtained(ScriptedRemote(), cache)
    inode = folder.stat().st_ino
    remote = ScriptedRemote()
    again, said = verified(remote, cache)
    assert again == folder
    assert folder.stat().st_ino == inode
    assert remote.fetched == []
    assert "3 files (config.json, ...): verified by sha256" in said


def test_a_damaged_file_of_the_right_size_is_fetched_again(cache: Path) -> None:
    folder = obtained(ScriptedRemote(), cache)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    remote = ScriptedRemote()
    again, said = verified(remote, cache)
    assert again == folder
    assert contents(folder) == remote.files
    assert remote.fetched == ["model.safetensors"]
    assert "sha256 differs" in said
    assert str(weights) in said


def test_what_cannot_be_verified_is_said(cache: Path) -> None:
    remote = ScriptedRemote(verification=Verification("", "there is no checksum"))
    obtained(remote, cache)
    assert "NOT VERIFIED: there is no checksum" in verified(remote, cache)[1]


def test_without_a_connection_there_is_nothing_to_compare_with(cache: Path) -> None:
    obtained(ScriptedRemote(), cache)
    with pytest.raises(RemoteUnreachable):
        verified(ScriptedRemote(listing_error=RemoteUnreachable("no network")), cache)


def test_a_model_of_this_machine_has_no_source(tmp_path: Path) -> None:
    source = ModelSource(model_id=str(tmp_path))
    for action in (model_files.verify, lambda source, view: model_files.prune(view, source)):
        with pytest.raises(model_files.ModelNotAvailable, match="is a local model"):
            action(source, LogLines(io.StringIO()))


def test_a_copy_from_s3_that_was_damaged_on_the_disk(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    folder, _ = s3.obtain()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(12_000_000)
        file.write(b"damage")
    s3.proxy.heal()
    process = s3.start(options=["--verify", "--prune"])
    out, said = process.communicate()
    assert process.returncode == 0, said
    assert out == f"{folder}\n"
    assert same(folder, small_model)
    assert "model.safetensors: the file differs from the object in S3 (CRC32 differs)" in said
    assert "config.json" in said
    assert "verified by CRC32" in said
    assert s3.proxy.object_bytes == (small_model / "model.safetensors").stat().st_size
