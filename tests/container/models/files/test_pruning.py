"""What `lmi prepare --prune` removes from the cache, and what it leaves."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.cli import main
from container.models import files as model_files
from container.models.errors import RemoteUnreachable
from container.models.files import ModelNotAvailable, fetch, pruning
from container.models.files.copies import key, last_published
from container.models.publish import locked
from container.progress import LogLines
from tests.container.models.files.test_fetch import ScriptedRemote

NAME = "test://model"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def version(number: int, cache: Path, name: str = NAME) -> Path:
    """The folder of a copy with a content of its own."""
    files = {**ScriptedRemote().files, "config.json": b'{"version": %d}' % number}
    return fetch.obtain(ScriptedRemote(files=files, name=name), cache, LogLines(io.StringIO()))


def broken_off(cache: Path, name: str = NAME) -> None:
    """Leave an unfinished fetch of another version."""
    remote = ScriptedRemote(
        files={**ScriptedRemote().files, "config.json": b'{"version": 99}'},
        name=name,
        break_at={"model.safetensors": RemoteUnreachable("gone")},
    )
    with pytest.raises(RemoteUnreachable):
        fetch.obtain(remote, cache, LogLines(io.StringIO()))


def pruned(cache: Path, name: str | None = None) -> tuple[int, str]:
    """(bytes freed, what was said)."""
    said = io.StringIO()
    return pruning.prune(cache, LogLines(said), name), said.getvalue()


def usage(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def there(cache: Path) -> set[Path]:
    return {path for path in (cache / "models").iterdir() if path.name != ".remote"}


def test_earlier_versions_and_unfinished_fetches_go_and_are_counted(cache: Path) -> None:
    old, new = version(1, cache), version(2, cache)
    size = usage(old)
    broken_off(cache)
    (part,) = (cache / "models" / ".remote").glob("*.part")
    size += usage(part)
    freed, said = pruned(cache)
    assert there(cache) == {new}
    assert last_published(NAME, cache) == new
    assert freed == size
    assert f"removed {old}: an old version, " in said
    assert f"removed {part}: an unfinished download, " in said
    assert pruned(cache) == (0, "")


def test_only_the_named_model_is_pruned(cache: Path) -> None:
    mine = [version(1, cache), version(2, cache)]
    others = [version(1, cache, "test://other"), version(2, cache, "test://other")]
    broken_off(cache, "test://other")
    pruned(cache, NAME)
    assert there(cache) == {mine[1], *others}
    assert len(list((cache / "models" / ".remote").glob("*.part"))) == 1
    pruned(cache)
    assert there(cache) == {mine[1], others[1]}
    assert list((cache / "models" / ".remote").glob("*.part")) == []


def test_a_broken_copy_goes(cache: Path) -> None:
    folder = version(1, cache)
    (folder / "model.safetensors").unlink()
    assert "incomplete" in pruned(cache)[1]
    assert there(cache) == set()


def test_what_a_server_uses_stays_until_it_ends(cache: Path) -> None:
    old, new = version(1, cache), version(2, cache)
    with model_files.in_use(old), model_files.in_use(new):
        freed, said = pruned(cache)
        assert freed == 0
        assert f"kept {old}: it is in use by a server" in said
        assert there(cache) == {old, new}
    pruned(cache)
    assert there(cache) == {new}


def test_a_copy_in_use_stays_so_when_it_is_fetched_again(cache: Path) -> None:
    old = version(1, cache)
    with model_files.in_use(old):
        (old / "config.json").unlink()
        assert version(1, cache) == old
        version(2, cache)
        assert "it is in use by a server" in pruned(cache)[1]


def test_what_is_being_fetched_stays(cache: Path) -> None:
    old = version(1, cache)
    version(2, cache)
    broken_off(cache)
    lock = cache / "models" / ".remote" / f"{key(NAME)}.lock"
    with locked(lock, "", LogLines(io.StringIO())):
        assert "another process is downloading it" in pruned(cache)[1]
    assert old in there(cache)
    assert len(list((cache / "models" / ".remote").glob("*.part"))) == 1


def test_a_removal_that_was_killed_is_finished_by_the_next(cache: Path) -> None:
    old = version(1, cache)
    version(2, cache)
    (old / "config.json").unlink()
    assert pruned(cache)[0] > 0
    assert not old.exists()
    assert len(list((cache / "models" / ".remote").glob("*-????????????????.json"))) == 1


def test_what_the_program_did_not_make_stays(cache: Path) -> None:
    version(1, cache)
    foreign = cache / "models" / "mine-0123456789abcdef"
    foreign.mkdir()
    (cache / "models" / ".remote" / "mine-0123456789abcdef.json").write_text("{}")
    assert pruned(cache) == (0, "")
    assert foreign.is_dir()


def test_a_copy_that_is_gone_cannot_be_used(cache: Path) -> None:
    with pytest.raises(ModelNotAvailable, match="try again"), model_files.in_use(cache / "models" / "gone"):
        raise AssertionError("it is used")


def test_the_command_prunes_all_models_and_what_killed_preparations_left(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMI_CACHE_DIR", str(cache))
    version(1, cache)
    new = version(2, cache)
    left = cache / "models" / ".SmolLM2-135M-Instruct.Q4_1-v1.part-x"
    left.mkdir()
    (left / "model.safetensors").write_bytes(bytes(10_000))
    result = CliRunner().invoke(main, ["prepare", "--prune"])
    assert result.exit_code == 0, result.output
    assert there(cache) - set((cache / "models").glob("*.lock")) == {new}
    assert "an unfinished conversion, " in result.output
    assert "bytes in" in result.output


@pytest.mark.parametrize("arguments", [[], ["--verify"], ["--verify", "--prune"]])
def test_the_command_wants_a_model_for_anything_else(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["prepare", *arguments])
    assert result.exit_code == 2
    assert "Missing argument 'MODEL'" in result.output
