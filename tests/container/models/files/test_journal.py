"""A file that is written in parts, by a process that may end at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.models.files import journal
from container.models.files.journal import PART_BYTES, PartsFile

_SIZE = 2 * PART_BYTES + 1000


def write(target: Path, version: str = "v1") -> None:
    with PartsFile(target, _SIZE, version) as file:
        file.append(0, b"a" * 5000)
        file.append(2, b"b" * 1000)
        file.append(0, b"c" * 3000)


def done(target: Path, size: int = _SIZE, version: str = "v1") -> list[int]:
    """What another process would go on from."""
    with PartsFile(target, size, version) as file:
        return list(file.done)


def test_what_was_written_is_gone_on_from(tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    assert done(target) == [8000, 0, 1000]
    content = target.read_bytes()
    assert content[:5000] == b"a" * 5000
    assert content[5000:8000] == b"c" * 3000
    assert content[2 * PART_BYTES :] == b"b" * 1000
    with PartsFile(target, _SIZE, "v1") as file:
        assert file.open_parts() == [0, 1]


def test_after_a_crash_of_the_machine_a_file_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x")
    boot = tmp_path / "boot_id"
    boot.write_text("another boot of the machine")
    monkeypatch.setattr(journal, "_BOOT_ID", boot)
    assert done(tmp_path / "x") == [0, 0, 0]


@pytest.mark.parametrize(("size", "version"), [(_SIZE, "v2"), (_SIZE + 1, "v1")])
def test_another_content_is_begun_anew(size: int, version: str, tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    assert done(target, size, version) == [0, 0, 0]
    assert not any(target.read_bytes())


def test_a_file_that_was_cut_is_begun_anew(tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    with target.open("r+b") as file:
        file.truncate(100)
    assert done(target) == [0, 0, 0]


def test_a_forgotten_file_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    journal.forget(target)
    assert list(tmp_path.iterdir()) == []
