"""Fetching from a scripted remote into the cache."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from container.models.errors import AccessRefused, ModelNotAvailable, RemoteUnreachable
from container.models.files import choice, fetch
from container.models.files.copies import Copy, folders, last_published, read_json
from container.models.files.remote import RemoteFile, Selection, Snapshot, Verification
from container.progress import LogLines
from tests.container.models.files.scripted_remote import (
    BY_SHA256,
    FILES,
    MODEL,
    SHARDS,
    WEIGHTS,
    Obtain,
    ScriptedRemote,
    contents,
    unfinished_fetches,
)
from tests.support.waiting import wait_until

_DAMAGED = ModelNotAvailable("damaged")


def test_a_model_is_published_under_a_readable_name(obtain: Obtain, cache: Path) -> None:
    remote = ScriptedRemote(name="s3://my-bucket/falcon 40b/")
    folder = obtain(remote).folder
    assert folder.parent == cache / "models"
    assert folder.name.startswith("s3-my-bucket-falcon-40b-")
    assert contents(folder) == MODEL
    assert last_published(remote.name, cache) == folder
    assert last_published("s3://my-bucket/falcon-40b/", cache) is None


@pytest.mark.parametrize(
    "index", ["", "[]", '{"name": "test://model"}', '{"name": "test://model", "copy": "../.."}', "\0" * 20]
)
def test_a_damaged_index_locates_nothing_and_is_repaired(index: str, obtain: Obtain, cache: Path) -> None:
    folder = obtain(ScriptedRemote()).folder
    (file,) = (cache / "models" / ".remote").glob("test-model-????????.json")
    file.write_text(index)
    assert last_published("test://model", cache) is None
    remote = ScriptedRemote()
    assert obtain(remote).folder == folder
    assert remote.fetched == []
    assert last_published("test://model", cache) == folder


def test_the_longest_list_of_files_is_read_back(cache: Path) -> None:
    files = tuple(RemoteFile(f"{number:01024}", 1, "") for number in range(choice.MAX_FILES))
    copy = Copy(cache, Snapshot("test://model", files))
    aside = folders(cache)[1]
    aside.mkdir(parents=True)
    copy.write_list(files)
    assert len(read_json(aside / f"{copy.folder.name}.json")["files"]) == choice.MAX_FILES


def test_an_unreachable_remote_without_a_copy_is_an_error(obtain: Obtain, cache: Path) -> None:
    with pytest.raises(RemoteUnreachable, match="no network"):
        obtain(ScriptedRemote(listing_error=RemoteUnreachable("no network")))
    assert not cache.exists()


@pytest.mark.parametrize("kind", [ModelNotAvailable, AccessRefused])
def test_a_definite_error_is_raised_even_with_a_copy(kind: type[ModelNotAvailable], obtain: Obtain) -> None:
    obtain(ScriptedRemote())
    with pytest.raises(kind, match="forbidden"):
        obtain(ScriptedRemote(listing_error=kind("forbidden")))


@pytest.mark.parametrize("kind", [RemoteUnreachable, AccessRefused])
def test_an_interrupted_fetch_is_resumed(kind: type[ModelNotAvailable], obtain: Obtain, cache: Path) -> None:
    with pytest.raises(kind):
        obtain(ScriptedRemote(break_at={"model.safetensors": kind("gone")}))
    assert len(unfinished_fetches(cache)) == 1
    remote = ScriptedRemote()
    folder, log = obtain(remote)
    assert contents(folder) == MODEL
    assert remote.fetched == ["model.safetensors"], "whole files were fetched again"
    assert "resuming an interrupted fetch" in log
    assert unfinished_fetches(cache) == []


def test_an_interrupted_fetch_of_another_version_is_removed(obtain: Obtain, cache: Path) -> None:
    with pytest.raises(RemoteUnreachable):
        obtain(ScriptedRemote(break_at={"model.safetensors": RemoteUnreachable("gone")}))
    other = ScriptedRemote(files={**MODEL, "config.json": b'{"a": 1}'})
    obtain(other)
    assert sorted(other.fetched) == sorted(MODEL)
    assert unfinished_fetches(cache) == []


def test_a_definite_error_leaves_no_partial_files(obtain: Obtain, cache: Path) -> None:
    with pytest.raises(ModelNotAvailable, match="damaged"):
        obtain(ScriptedRemote(break_at={"model.safetensors": _DAMAGED}))
    assert unfinished_fetches(cache) == []


def test_a_definite_error_keeps_complete_shards(obtain: Obtain, cache: Path) -> None:
    with pytest.raises(ModelNotAvailable, match="damaged"):
        obtain(ScriptedRemote(files=SHARDS, break_at={"m2.safetensors": _DAMAGED}))
    kept = {path.name for path in (cache / "models" / ".remote").glob("*.part/*")}
    assert kept == set(SHARDS) - {"m2.safetensors"}, "a partial shard was kept, or a complete one was not"
    remote = ScriptedRemote(files=SHARDS)
    assert contents(obtain(remote).folder) == SHARDS
    assert remote.fetched == ["m2.safetensors"]


@pytest.mark.parametrize(
    ("verification", "line"),
    [
        (BY_SHA256, f"note: {FILES}: verified by sha256"),
        (
            Verification("", "there is no checksum"),
            f"warning: {FILES}: NOT VERIFIED: there is no checksum; checked only sizes and weight headers",
        ),
    ],
)
def test_many_files_share_one_note_or_warning(verification: Verification, line: str, obtain: Obtain) -> None:
    log = obtain(ScriptedRemote(verification=verification)).log
    assert [one for one in log.splitlines() if one.startswith(("note:", "warning:"))] == [line]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_bytes(code: int, obtain: Obtain, cache: Path) -> None:
    full = OSError(code, os.strerror(code))
    words = rf"the cache {cache} is full .*; free some space, and the next start resumes the download"
    with pytest.raises(ModelNotAvailable, match=words):
        obtain(ScriptedRemote(break_at={"model.safetensors": full}))
    remote = ScriptedRemote()
    assert contents(obtain(remote).folder) == MODEL
    assert remote.num_bytes == len(WEIGHTS) - len(WEIGHTS) // 2


def test_a_definite_error_keeps_only_complete_gguf_parts_in_a_subfolder(cache: Path) -> None:
    parts = [f"Q4_K_M/m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    files = dict.fromkeys(parts, b"GGUF" * 1000)
    selection, view = Selection(gguf=parts[0]), LogLines(io.StringIO())

    def fail_at(part: str) -> None:
        damaged = ScriptedRemote(files=files, break_at={part: _DAMAGED})
        with pytest.raises(ModelNotAvailable, match="damaged"):
            fetch.obtain(damaged, cache, view, selection)

    fail_at(parts[0])
    assert unfinished_fetches(cache) == []
    fail_at(parts[2])
    remote = ScriptedRemote(files=files)
    folder = fetch.obtain(remote, cache, view, selection)
    assert remote.fetched == [parts[2]]
    assert {part: (folder / part).read_bytes() for part in parts} == files


def test_a_file_that_cannot_be_flushed_is_fetched_again(
    obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        if path.suffix == ".safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(fetch, "flush", full)
        with pytest.raises(ModelNotAvailable, match="is full"):
            obtain(ScriptedRemote())
    remote = ScriptedRemote()
    assert contents(obtain(remote).folder) == MODEL
    assert remote.fetched == ["model.safetensors"]
    assert remote.num_bytes == len(WEIGHTS)


def test_a_file_is_fetched_while_the_previous_one_is_flushed(
    obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, flushed = ScriptedRemote(), []

    def flush(path: Path) -> None:
        if path.name == "config.json":
            wait_until(lambda: len(remote.fetched) > 1)
        flushed.append(path.name)

    monkeypatch.setattr(fetch, "flush", flush)
    assert contents(obtain(remote).folder) == MODEL
    assert sorted(flushed) == sorted(MODEL)


def test_only_the_missing_file_of_a_copy_is_fetched(obtain: Obtain) -> None:
    folder = obtain(ScriptedRemote(files=SHARDS)).folder
    (folder / "m2.safetensors").unlink()
    remote = ScriptedRemote(files=SHARDS)
    assert contents(obtain(remote).folder) == SHARDS
    assert remote.fetched == ["m2.safetensors"]


def test_a_cache_that_cannot_be_written_is_an_error(obtain: Obtain, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelNotAvailable, match="cannot write the cache"):
        obtain(ScriptedRemote())


@pytest.mark.parametrize("wrong", [WEIGHTS[:-100], WEIGHTS + b"more", b"no safetensors at all", b""])
def test_incomplete_weights_are_not_published(wrong: bytes, obtain: Obtain, cache: Path) -> None:
    with pytest.raises(ModelNotAvailable, match="is not a complete safetensors file"):
        obtain(ScriptedRemote(files={**MODEL, "model.safetensors": wrong}))
    assert [path.name for path in (cache / "models").iterdir()] == [".remote"]
    assert unfinished_fetches(cache) == []


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "no 'weight_map'"),
        (b'{"weight_map": {"a": "../m.safetensors"}}', "which is not a .safetensors file"),
        (b'{"weight_map": {"a": "m.bin"}}', "which is not a .safetensors file"),
        (b'{"weight_map": {"a": 7}}', "which is not a .safetensors file"),
        (b'{"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}}', "missing: m2.safetensors"),
    ],
)
def test_a_bad_weight_index_is_rejected_before_weights_are_fetched(
    index: bytes, words: str, obtain: Obtain
) -> None:
    remote = ScriptedRemote(files={"config.json": b"{}", choice.INDEX: index, "m1.safetensors": WEIGHTS})
    with pytest.raises(ModelNotAvailable) as caught:
        obtain(remote)
    assert words in str(caught.value)
    assert remote.fetched == [choice.INDEX]
