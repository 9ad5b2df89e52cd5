"""Conversions in child processes: progress, errors, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from container.models import conversion
from container.models.conversion import ConversionFailed, convert
from tests.support import processes
from tests.support.paths import child_environment

_CONVERT = """
import sys
from pathlib import Path
from container.models.conversion import convert
folder = Path(sys.argv[1])
convert("conversion_of_a_test", folder, folder, report=lambda line: print("started", flush=True))
"""
_HANG = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the folder is on the path of modules."""
    found = child_environment()
    return found | {"PYTHONPATH": os.pathsep.join([found["PYTHONPATH"], str(tmp_path)])}


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Callable[[str], list[bytes]]:
    """Run a module with this code as a conversion, and return the lines that it reported."""

    def run_code(code: str) -> list[bytes]:
        (tmp_path / "conversion_of_a_test.py").write_text(f"import os, sys\n{code}\n")
        lines: list[bytes] = []
        convert("conversion_of_a_test", tmp_path / "source", tmp_path, environment, lines.append)
        return lines

    return run_code


def test_a_conversion_reports_its_lines_and_gets_both_paths(
    run: Callable[[str], list[bytes]], tmp_path: Path
) -> None:
    assert run("print(1)\nprint(sys.argv[1:])") == [
        b"1\n",
        f"{[f'{tmp_path}/source', str(tmp_path)]}\n".encode(),
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "print('a warning', file=sys.stderr)\nsys.exit('no such\\x1b vocabulary')",
            r"no such\x1b vocabulary",
        ),
        (
            "print('a warning', file=sys.stderr, flush=True)\nos.kill(os.getpid(), 9)",
            "the conversion was killed by SIGKILL (kill -9, or the kernel when out of memory)",
        ),
        ("sys.exit(3)", "the conversion ended with exit code 3"),
        ("print('x' * (1 << 20), file=sys.stderr)\nsys.exit('last')", "last"),
    ],
    ids=["error", "signal", "exit code", "much output"],
)
def test_the_reason_of_a_failure_is_one_line(
    code: str, reason: str, run: Callable[[str], list[bytes]]
) -> None:
    with pytest.raises(ConversionFailed) as caught:
        run(code)
    assert str(caught.value) == reason


def test_a_conversion_without_progress_is_killed(
    run: Callable[[str], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_SILENCE_SECONDS", 0.1)
    with pytest.raises(ConversionFailed, match="timed out after 0 s without progress"):
        run("import time\ntime.sleep(600)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_conversion_ends_with_the_process_that_started_it(
    number: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "conversion_of_a_test.py").write_text(_HANG)
    command = [sys.executable, "-c", _CONVERT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        children = processes.descendants(process.pid)
        process.send_signal(number)
    assert children
    assert processes.wait_exited(children, 200) == []
