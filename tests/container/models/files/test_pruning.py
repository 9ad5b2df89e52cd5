"""Files that `lmi prepare --prune` removes from the cache, and files that it keeps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from container.cli import main
from container.models import files as model_files
from container.models.errors import RemoteUnreachable
from container.models.files import ModelNotAvailable, fetch, pruning
from container.models.files.copies import key, last_published
from container.models.publish import locked
from container.progress import LogLines
from tests.container.models.files.scripted_remote import ScriptedRemote

NAME = "test://model"


def remote(number: int, name: str, **options: Any) -> ScriptedRemote:
    files = {**ScriptedRemote().files, "config.json": b'{"version": %d}' % number}
    return ScriptedRemote(files=files, name=name, **options)


def fetch_version(number: int, cache: Path, name: str = NAME) -> Path:
    """Fetch a version of the model and return its folder."""
    return fetch.obtain(remote(number, name), cache, LogLines(io.StringIO()))


def interrupt_fetch(cache: Path, name: str = NAME) -> None:
    """Interrupt the fetch of another version, which stays unfinished."""
    gone = {"model.safetensors": RemoteUnreachable("gone")}
    with pytest.raises(RemoteUnreachable):
        fetch.obtain(remote(99, name, break_at=gone), cache, LogLines(io.StringIO()))


def prune(cache: Path, name: str | None = None) -> tuple[int, str]:
    """Return (bytes freed, log)."""
    log = io.StringIO()
    return pruning.prune(cache, LogLines(log), name), log.getvalue()


def disk_usage(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def copies_in(cache: Path) -> set[Path]:
    return {path for path in (cache / "models").iterdir() if path.name != ".remote"}


def test_old_versions_and_unfinished_fetches_are_removed_and_counted(cache: Path) -> None:
    old, new = fetch_version(1, cache), fetch_version(2, cache)
    size = disk_usage(old)
    interrupt_fetch(cache)
    (part,) = (cache / "models" / ".remote").glob("*.part")
    size += disk_usage(part)
    freed, log = prune(cache)
    assert copies_in(cache) == {new}
    assert last_published(NAME, cache) == new
    assert freed == size
    assert f"removed {old}: an old version, " in log
    assert f"removed {part}: an unfinished download, " in log
    assert prune(cache) == (0, "")


def test_only_the_named_model_is_pruned(cache: Path) -> None:
    mine = [fetch_version(1, cache), fetch_version(2, cache)]
    others = [fetch_version(1, cache, "test://other"), fetch_version(2, cache, "test://other")]
    interrupt_fetch(cache, "test://other")
    prune(cache, NAME)
    assert copies_in(cache) == {mine[1], *others}
    assert len(list((cache / "models" / ".remote").glob("*.part"))) == 1
    prune(cache)
    assert copies_in(cache) == {mine[1], others[1]}
    assert list((cache / "models" / ".remote").glob("*.part")) == []


def test_an_incomplete_copy_is_removed_with_its_list_of_files(cache: Path) -> None:
    """An interrupted removal leaves such a copy."""
    folder = fetch_version(1, cache)
    (folder / "model.safetensors").unlink()
    assert "incomplete" in prune(cache)[1]
    assert copies_in(cache) == set()
    assert list((cache / "models" / ".remote").glob("*-????????????????.json")) == []


def test_a_copy_in_use_by_a_server_is_kept(cache: Path) -> None:
    old, new = fetch_version(1, cache), fetch_version(2, cache)
    with model_files.in_use(old), model_files.in_use(new):
        freed, log = prune(cache)
        assert freed == 0
        assert f"kept {old}: it is in use by a server" in log
        assert copies_in(cache) == {old, new}
    prune(cache)
    assert copies_in(cache) == {new}


def test_a_copy_stays_in_use_when_it_is_fetched_again(cache: Path) -> None:
    old = fetch_version(1, cache)
    with model_files.in_use(old):
        (old / "config.json").unlink()
        assert fetch_version(1, cache) == old
        fetch_version(2, cache)
        assert "it is in use by a server" in prune(cache)[1]


def test_a_running_fetch_is_kept(cache: Path) -> None:
    old = fetch_version(1, cache)
    fetch_version(2, cache)
    interrupt_fetch(cache)
    lock = cache / "models" / ".remote" / f"{key(NAME)}.lock"
    with locked(lock, "", LogLines(io.StringIO())):
        assert "another process is downloading it" in prune(cache)[1]
    assert old in copies_in(cache)
    assert len(list((cache / "models" / ".remote").glob("*.part"))) == 1


def test_foreign_folders_are_kept(cache: Path) -> None:
    fetch_version(1, cache)
    foreign = cache / "models" / "mine-0123456789abcdef"
    foreign.mkdir()
    (cache / "models" / ".remote" / "mine-0123456789abcdef.json").write_text("{}")
    assert prune(cache) == (0, "")
    assert foreign.is_dir()


def test_a_removed_copy_cannot_be_used(cache: Path) -> None:
    with pytest.raises(ModelNotAvailable, match="try again"), model_files.in_use(cache / "models" / "gone"):
        raise AssertionError("a removed copy is in use")


def test_the_command_prunes_all_models_and_unfinished_conversions(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMI_CACHE_DIR", str(cache))
    fetch_version(1, cache)
    new = fetch_version(2, cache)
    unfinished = cache / "models" / ".SmolLM2-135M-Instruct.Q4_1-v1.part-x"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(bytes(10_000))
    result = CliRunner().invoke(main, ["prepare", "--prune"])
    assert result.exit_code == 0, result.output
    assert copies_in(cache) - set((cache / "models").glob("*.lock")) == {new}
    assert "an unfinished conversion, " in result.output
    assert "bytes in" in result.output


@pytest.mark.parametrize("arguments", [[], ["--verify"], ["--verify", "--prune"]])
def test_the_command_requires_a_model_without_prune(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["prepare", *arguments])
    assert result.exit_code == 2
    assert "Missing argument 'MODEL'" in result.output
