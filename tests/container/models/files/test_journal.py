"""Files written in parts by a process that may be killed at any time."""

from __future__ import annotations

import os
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


def written_bytes(target: Path, size: int = _SIZE, version: str = "v1") -> list[int]:
    """Return the written bytes of each part, as a resuming process sees them."""
    with PartsFile(target, size, version) as file:
        return list(file.done)


def test_writing_resumes_after_the_written_bytes(tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    assert written_bytes(target) == [8000, 0, 1000]
    content = target.read_bytes()
    assert content[:5000] == b"a" * 5000
    assert content[5000:8000] == b"c" * 3000
    assert content[2 * PART_BYTES :] == b"b" * 1000
    with PartsFile(target, _SIZE, "v1") as file:
        assert file.open_parts() == [0, 1]


def test_writing_starts_over_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x")
    boot = tmp_path / "boot_id"
    boot.write_text("another boot of the machine")
    monkeypatch.setattr(journal, "_BOOT_ID", boot)
    assert written_bytes(tmp_path / "x") == [0, 0, 0]


@pytest.mark.parametrize(
    ("kept", "size", "version"),
    [(_SIZE, _SIZE, "v2"), (_SIZE, _SIZE + 1, "v1"), (100, _SIZE, "v1")],
    ids=["another version", "another size", "truncated"],
)
def test_writing_starts_over_for_another_file(kept: int, size: int, version: str, tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    os.truncate(target, kept)
    assert written_bytes(target, size, version) == [0, 0, 0]
    assert not any(target.read_bytes())


def test_forget_removes_the_file_and_its_notes(tmp_path: Path) -> None:
    target = tmp_path / "x"
    write(target)
    journal.forget(target)
    assert list(tmp_path.iterdir()) == []
