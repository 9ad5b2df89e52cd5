"""Output whose reader hangs, is slow, or is gone."""

from __future__ import annotations

import io
import os
import pty
import select
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from container import lossy_output
from container.lossy_output import LossyOutput, lossy

LINE = b"x" * 98 + b"\n"


def open_pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return both ends of a pipe."""
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


def open_terminal() -> tuple[IO[bytes], IO[bytes]]:
    """Return a terminal as its emulator and its programs see it."""
    emulator, terminal = pty.openpty()
    return os.fdopen(emulator, "rb", buffering=0), os.fdopen(terminal, "wb", buffering=0)


def stopped_terminal() -> tuple[IO[bytes], IO[bytes]]:
    """Return a terminal after Ctrl-S."""
    emulator, terminal = open_terminal()
    termios.tcflow(terminal, termios.TCOOFF)
    return emulator, terminal


@pytest.mark.parametrize("open_both", [open_pipe, open_terminal, stopped_terminal])
def test_a_hanging_reader_costs_a_second_once(open_both: Callable[[], tuple[IO[bytes], IO[bytes]]]) -> None:
    reader, file = open_both()
    with reader, file:
        output = LossyOutput(file)
        began = time.monotonic()
        writing = threading.Thread(
            target=lambda: [output.write(1000 * LINE) for _ in range(100)], daemon=True
        )
        writing.start()
        writing.join(60)
        assert not writing.is_alive()
        assert time.monotonic() - began < 20


def test_a_reader_that_reads_again_gets_further_lines() -> None:
    reader, file = open_pipe()
    with reader, file:
        output = LossyOutput(file)
        for _ in range(10):
            output.write(1000 * LINE)
        assert 0 < len(reader.read(1 << 20)) < 10_000 * len(LINE)
        output.write(b"last\n")
        assert reader.read(1 << 20) == b"last\n"


@pytest.mark.parametrize("open_both", [open_pipe, open_terminal])
def test_a_slow_reader_gets_everything(
    open_both: Callable[[], tuple[IO[bytes], IO[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lossy_output, "_PATIENCE_SECONDS", 60.0)  # the machine may be busy
    reader, file = open_both()
    with reader, file:
        threads = [threading.Thread(target=LossyOutput(file).write, args=(20_000 * LINE,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        count = 0
        while count < 40_000 and select.select([reader], [], [], 20)[0]:
            count += reader.read(10_000).count(b"\n")
        for thread in threads:
            thread.join()
    assert count == 40_000


def test_what_cannot_be_written_is_lost() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        output = LossyOutput(file)
        assert output.write(LINE) == len(LINE)
    assert output.write(LINE) == len(LINE), "to a closed file"


def test_a_text_stream_keeps_all_characters_and_names_that_are_not_utf_8(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as file:
        print("é", os.fsdecode(b"\xff"), file=lossy(file), flush=True)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "é \\udcff\n"


def test_a_stream_without_a_file_is_used_as_it_is() -> None:
    stream = io.StringIO()
    assert lossy(stream) is stream
