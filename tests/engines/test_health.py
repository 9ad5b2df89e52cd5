"""The status board: one process writes the health of the engine, others read it even after the writer has died."""

from __future__ import annotations

import stat
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from engines.health import STALE_AFTER_SECONDS, EngineState, Health, StatusBoard
from tests.support.examples import examples


@pytest.fixture
def board(tmp_path: Path) -> StatusBoard:
    return StatusBoard.create(tmp_path / "status", world_size=2)


def _set_beat(path: Path, rank: int, beat: float) -> None:
    """Write a heartbeat in the file layout that the module docstring of engines.health describes."""
    with path.open("r+b") as file:
        file.seek(8 + 8 * rank)
        file.write(struct.pack("<d", beat))


def test_a_new_board_reports_that_the_model_is_loading(board: StatusBoard) -> None:
    health = board.read()
    assert health.state is EngineState.STARTING
    assert health.reason == ""
    assert not health.ready
    assert health.describe() == "the model is loading"


def test_native_code_writes_the_heartbeat_of_a_rank(tmp_path: Path, board: StatusBoard) -> None:
    place = board.heartbeat_view(1)
    board.beat(0)
    board.beat(1)
    assert place.value <= time.monotonic() < place.value + 5
    place.value -= 60
    assert 60 <= StatusBoard.open(tmp_path / "status").read().heartbeat_age < 65


def test_only_the_owner_may_read_or_write(tmp_path: Path, board: StatusBoard) -> None:
    assert stat.S_IMODE((tmp_path / "status").stat().st_mode) == 0o600


def test_a_board_never_overwrites_a_file(tmp_path: Path, board: StatusBoard) -> None:
    with pytest.raises(FileExistsError):
        StatusBoard.create(tmp_path / "status", 1)


@pytest.mark.parametrize("state", list(EngineState))
def test_another_reader_sees_state_and_reason(tmp_path: Path, board: StatusBoard, state: EngineState) -> None:
    board.set_state(state, "because")
    other = StatusBoard.open(tmp_path / "status")
    assert (other.read().state, other.read().reason) == (state, "because")
    board.set_state(state)
    assert other.read().reason == ""


@given(reason=st.text(st.characters(exclude_categories=()), max_size=3000))
@example(reason="no such folder: caf\udce9")
@example(reason="ü" * 1030)
@example(reason="x" + "ü" * 1030)
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_can_be_a_reason(board: StatusBoard, reason: str) -> None:
    """Error messages may quote file names that are not valid UTF-8, or long texts."""
    board.set_state(EngineState.FAILED, reason)
    health = board.read()
    assert health.state is EngineState.FAILED
    encoded = reason.encode(errors="replace")
    assert health.reason == encoded[:2048].decode(errors="ignore")


def test_ready_requires_a_heartbeat_of_every_rank(board: StatusBoard, frozen_clock: float) -> None:
    board.set_state(EngineState.READY)
    board.beat(0)
    assert not board.read().ready
    board.beat(1)
    health = board.read()
    assert health.ready
    assert health.heartbeat_age == 0.0
    assert health.describe() == "ready"


@pytest.mark.parametrize("silent", [0, 1])
def test_one_silent_rank_makes_the_engine_not_ready(
    tmp_path: Path, board: StatusBoard, silent: int, frozen_clock: float
) -> None:
    board.set_state(EngineState.READY)
    for rank in (0, 1):
        board.beat(rank)
    _set_beat(tmp_path / "status", silent, frozen_clock - STALE_AFTER_SECONDS - 1)
    health = board.read()
    assert not health.ready
    assert "made no progress for 8 s" in health.describe()


@pytest.mark.parametrize("state", [s for s in EngineState if s is not EngineState.READY])
def test_a_fresh_heartbeat_in_another_state_is_not_ready(state: EngineState) -> None:
    health = Health(state, "the cause", 0.1)
    assert not health.ready
    assert health.describe().endswith(": the cause")
    assert Health(EngineState.FAILED, "the cause", 0.1).describe() == "the engine has failed: the cause"


def test_opening_a_missing_or_truncated_board_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StatusBoard.open(tmp_path / "missing")
    (tmp_path / "short").write_bytes(b"")
    with pytest.raises((struct.error, ValueError)):
        StatusBoard.open(tmp_path / "short")
