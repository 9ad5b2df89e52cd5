"""Tables printed by the measuring commands."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from rich.console import Console

from container.measure.output import Table, publish, require_writable, write_csv
from container.run.stop_signals import StopSignals
from tests.support.paths import child_environment


def test_brackets_in_a_table_are_not_read_as_markup() -> None:
    screen = io.StringIO()
    table = Table("[title]", ("name [s]", "[/v1/x]"), (("v[int8]", "[/not/markup]"),))
    table.print_to(Console(file=screen, width=80))
    for text in ("[title]", "name [s]", "[/v1/x]", "v[int8]", "[/not/markup]"):
        assert text in screen.getvalue()


def test_a_file_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "new.json", Path("-"), None)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (tmp_path / "old.json").touch()
    require_writable(tmp_path / "old.json")
    with pytest.raises(click.UsageError, match=r"new\.json: cannot be written"):
        require_writable(tmp_path / "new.json")
    with pytest.raises(click.UsageError, match="there is no folder"):
        require_writable(tmp_path / "none" / "new.json")


def test_a_file_that_cannot_be_written_does_not_prevent_the_others(tmp_path: Path) -> None:
    gone, kept = tmp_path / "gone", tmp_path / "3.csv"
    writers = [functools.partial(write_csv, (), (), path) for path in (gone / "2.csv", kept)]
    with pytest.raises(click.ClickException, match=r"1\.json: No such file.*\n.*2\.csv: No such file"):
        publish([], [], {}, gone / "1.json", *writers)
    assert kept.exists()


class _ClosedTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_files_are_written_even_if_the_terminal_is_closed(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, stream, _ClosedTerminal())
    results, report = tmp_path / "results.json", tmp_path / "report.md"

    def write_report() -> str:
        report.touch()
        return f"report: {report}"

    with pytest.raises(OSError, match="Input/output error"):
        publish([Table("", ("a",), ())], ["a line"], {"a": 1}, results, write_report)
    assert json.loads(results.read_text()) == {"a": 1}
    assert report.exists()


def test_a_measurement_whose_reader_is_gone_writes_its_files_and_exits_with_1(tmp_path: Path) -> None:
    """As in `lmi kv-waste | less`, if `less` was quit."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "container", "kv-waste", "--requests", "10", "--json", "results.json"]
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, cwd=tmp_path, env=child_environment(), check=False
        )
    assert done.returncode == 1
    assert b"Error" not in done.stderr
    assert len(json.loads((tmp_path / "results.json").read_text())["results"]) == 3


def test_a_stop_signal_does_not_prevent_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def write_first() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        first.touch()

    with StopSignals() as signals:
        publish([], [], {}, None, write_first, second.touch)
        assert signal.getsignal(signal.SIGTERM) == signals._stop
    assert first.exists()
    assert second.exists()


def test_json_on_stdout_is_not_mixed_with_tables(capsys: pytest.CaptureFixture[str]) -> None:
    publish([Table("the title", ("a",), ())], ["a line"], {"a": 1}, Path("-"), lambda: "report: r.md")
    output = capsys.readouterr()
    assert json.loads(output.out) == {"a": 1}
    for text in ("the title", "a line", "report: r.md"):
        assert text in output.err
