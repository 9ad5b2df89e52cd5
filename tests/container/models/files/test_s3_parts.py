"""Grouping of the parts of an object into requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.models.files.journal import PART_BYTES, PartsFile
from container.models.files.s3.parts import THREADS, _runs


def runs(tmp_path: Path, num_parts: int, done: dict[int, int]) -> list[list[int]]:
    with PartsFile(tmp_path / "x", num_parts * PART_BYTES, "v1") as file:
        for part, count in done.items():
            file.done[part] = count
        return [list(run) for run in _runs(file)]


@pytest.mark.parametrize("num_parts", [0, 1, 3, 100, 1000])
def test_every_part_is_requested_once_and_every_thread_has_work(num_parts: int, tmp_path: Path) -> None:
    requests = runs(tmp_path, num_parts, {})
    assert [part for run in requests for part in run] == list(range(num_parts))
    assert len(requests) >= min(num_parts, THREADS)
    assert num_parts < 1000 or len(requests) <= num_parts // 4, "no parts are requested together"


def test_complete_parts_are_skipped_and_begun_parts_start_a_request(tmp_path: Path) -> None:
    """A request reads without gaps, so bytes after a begun part inside a run would be written to the wrong place."""
    requests = runs(tmp_path, 200, {3: PART_BYTES, 100: 5000, 101: 700})
    assert [part for run in requests for part in run] == [part for part in range(200) if part != 3]
    for run in requests:
        assert run == list(range(run[0], run[-1] + 1))
        assert not {100, 101} & set(run[1:])
