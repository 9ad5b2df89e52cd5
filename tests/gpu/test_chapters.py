"""Chapters of the GPU check fit their time limit, kill parts that time out, and lose no results."""

from __future__ import annotations

import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.gpu import chapters
from tests.gpu.chapters import Check, run_stage
from tests.gpu.check import main
from tests.gpu.compile_cache import CompileCache
from tests.gpu.plan import CHAPTER_SECONDS, CHAPTERS, PARTS
from tests.gpu.records import FILE, read
from tests.gpu.targets import TARGETS
from tests.support.waiting import wait_until

_BEGIN = """
import os, subprocess, sys, time
from pathlib import Path
from tests.gpu.records import Records
records = Records(Path({out!r}))
records.write({part!r}, "begin", smoke=False)
records.write({part!r}, "entry", name="seen", passed=None)
"""
_FINISHES = _BEGIN + "records.write({part!r}, 'end')"
_HANGS = (
    _BEGIN
    + """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
Path({out!r}, "child").write_text(str(child.pid))
time.sleep(300)
"""
)
_WAITS_FOR_OTHER = (
    _BEGIN
    + """
Path({out!r}, {part!r}).touch()
while len([name for name in ("steps", "idle") if Path({out!r}, name).exists()]) < 2:
    time.sleep(0.01)
"""
)
_FAILS_CHECKS = _FINISHES + "\nsys.exit(3)"
_RAISES = _BEGIN + "import no_such_module"
_ABORTS = _BEGIN + "os.abort()"
_ABORTS_AT_EXIT = _FINISHES + "\nos.abort()"
_DOES_NOT_BEGIN = "import no_such_module"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    cache = CompileCache(tmp_path / "kernels")
    return Check(
        tmp_path / "out", cache, smoke=False, environment={"PYTHONPATH": ".:kernels", "PATH": "/usr/bin"}
    )


def _replace_parts(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run this script in place of every part."""

    def command(check: Check, part: str, seconds: float) -> list[str]:
        return [sys.executable, "-c", script.format(out=str(check.out), part=part)]

    monkeypatch.setattr(chapters, "part_command", command)


def test_every_chapter_fits_its_time_limit() -> None:
    for number, chapter in CHAPTERS.items():
        assert chapter.seconds <= CHAPTER_SECONDS <= 480, number


def test_every_part_is_in_a_chapter_and_every_target_in_a_part() -> None:
    assert {part for chapter in CHAPTERS.values() for stage in chapter.stages for part in stage} == set(PARTS)
    assert {target.part for target in TARGETS.values()} <= set(PARTS)


def test_the_plan_lists_every_part_with_its_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for number in CHAPTERS:
        assert any(line.startswith(f"chapter {number}: ") for line in lines)
    for name, part in PARTS.items():
        assert any(line.split()[:2] == [name, str(part.seconds)] for line in lines), name


def test_a_part_that_times_out_is_killed_with_its_children(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    _replace_parts(monkeypatch, _HANGS)
    monkeypatch.setattr(chapters, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(chapters, "_GRACE_SECONDS", 1.0)
    child, seconds = check.out / "child", 2.0
    child.touch()
    while not child.read_text():  # On a busy machine the child may start later.
        assert run_stage(check, ["steps"], time.monotonic() + seconds) == {"steps": None}
        seconds *= 2
    wait_until(lambda: _has_exited(int(child.read_text())))  # A killed process exits a moment later.
    (run,) = read([check.out / FILE])
    assert [entry["name"] for entry in run["entries"]] == ["seen"]
    assert "timed out" in run["stopped"]
    assert "steps" in check.failed_parts


def _has_exited(process: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def test_parts_of_a_stage_run_concurrently(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part waits for the other."""
    _replace_parts(monkeypatch, _WAITS_FOR_OTHER)
    assert run_stage(check, ["steps", "idle"], time.monotonic() + 100) == {"steps": 0, "idle": 0}


@pytest.mark.parametrize(
    ("script", "code"), [(_FINISHES, 0), (_RAISES, 1), (_FAILS_CHECKS, 3), (_ABORTS, -6)]
)
def test_exit_codes_of_parts(script: str, code: int, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_parts(monkeypatch, script)
    assert run_stage(check, ["steps"], time.monotonic() + 100) == {"steps": code}
    assert check.failed_parts == (["steps"] if code else [])
    (run,) = read([check.out / FILE])
    assert len(run["entries"]) == 1
    assert run["finished"] == (code in (0, 3))
    assert bool(run["stopped"]) == (code in (1, -6))


def test_a_part_without_time_is_not_started(check: Check) -> None:
    assert run_stage(check, ["steps"], time.monotonic() + 1) == {"steps": None}
    (run,) = read([check.out / FILE])
    assert run["stopped"] == "not started: no time left"


@pytest.mark.parametrize(
    ("script", "seconds", "num_entries", "finished", "stopped"),
    [
        (_ABORTS_AT_EXIT, 100, 1, True, "crashed with exit code -6"),
        (_DOES_NOT_BEGIN, 100, 0, False, "crashed with exit code 1"),
        (_FINISHES, 1, 1, True, ""),
    ],
    ids=["aborts at exit", "does not begin", "no time"],
)
def test_a_part_is_run_again(
    script: str,
    seconds: float,
    num_entries: int,
    finished: bool,
    stopped: str,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for each, limit in ((_FINISHES, 100.0), (script, seconds)):
        _replace_parts(monkeypatch, each)
        run_stage(check, ["steps"], time.monotonic() + limit)
    assert check.failed_parts == ["steps"]
    (run,) = read([check.out / FILE])
    assert (len(run["entries"]), run["finished"]) == (num_entries, finished)
    assert run["stopped"].partition(" after ")[0] == stopped


def _kernel(cache: Path, name: str) -> None:
    """Write the files that Triton leaves for a kernel."""
    folder = cache / name
    folder.mkdir(parents=True)
    for file in ("k.json", "k.cubin", "k.ptx", "k.ttir"):
        (folder / file).write_text(name + file)
    paths = {file: str(folder / file) for file in ("k.json", "k.cubin", "k.ptx", "k.ttir")}
    (folder / "__grp__k.json").write_text(str({"child_paths": paths}).replace("'", '"'))


def test_compiled_kernels_are_transferred_in_archives(tmp_path: Path) -> None:
    here, there, out = CompileCache(tmp_path / "here"), CompileCache(tmp_path / "there"), tmp_path / "out"
    out.mkdir()
    _kernel(here.folder, "AAA")
    assert len(here.pack(out)) == 1
    assert here.pack(out) == []
    _kernel(here.folder, "BBB")
    (archive,) = here.pack(out)
    with tarfile.open(archive) as tar:
        names = sorted(tar.getnames())
    assert names == [
        f"{folder}/{name}" for folder in ("AAA", "BBB") for name in ("__grp__k.json", "k.cubin", "k.json")
    ]
    assert there.unpack(out) == 1
    assert (there.folder / "AAA/k.cubin").read_text() == "AAAk.cubin"
    assert str(there.folder) in (there.folder / "BBB/__grp__k.json").read_text()


def test_the_number_of_archives_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.compile_cache._PIECE_BYTES", 40)
    cache = CompileCache(tmp_path / "here")
    for number in range(9):
        _kernel(cache.folder, f"K{number}")
    assert len(cache.pack(tmp_path)) == 3


def test_a_broken_archive_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "triton-cache-0.tar.gz").write_bytes(b"no archive")
    assert CompileCache(tmp_path / "there").unpack(tmp_path) == 0
