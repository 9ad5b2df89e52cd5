"""Environments of peers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.bench import environment
from tests.bench.contender import Unavailable
from tests.bench.environment import Environment, called, folder_made, torch_cpu

FIRST, SECOND = ("install", "one"), ("install", "one", "--elsewhere")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What pip is asked for; `FIRST` fails."""
    asked: list[tuple[str, ...]] = []

    def pretend(
        command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir()
            return
        asked.append(tuple(command[4:]))
        if asked[-1] == FIRST:
            raise Unavailable("no such package")

    monkeypatch.setattr(environment, "called", pretend)
    return asked


def test_alternatives_are_tried_and_the_same_recipe_is_done_once(
    pip: list[tuple[str, ...]], tmp_path: Path
) -> None:
    made = Environment(tmp_path / "peer", ((FIRST, SECOND), (("install", "two"),)))
    assert made.make(lambda text: None) == tmp_path / "peer/venv/bin/python"
    assert pip == [FIRST, SECOND, ("install", "two")]
    made.make(lambda text: None)
    assert len(pip) == 3
    Environment(tmp_path / "peer", ((("install", "three"),),)).make(lambda text: None)
    assert pip[3:] == [("install", "three")]


def test_what_cannot_be_installed_is_tried_again_next_time(
    pip: list[tuple[str, ...]], tmp_path: Path
) -> None:
    made = Environment(tmp_path / "peer", ((FIRST,),))
    for _ in range(2):
        with pytest.raises(Unavailable, match="no such package"):
            made.make(lambda text: None)
    assert pip == [FIRST, FIRST]


def test_a_failing_command_is_told_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(Unavailable, match=r"failed; .*log ends with\n(.*\n)*  the reason"):
        called([sys.executable, "-S", "-c", "print('the reason'); raise SystemExit(3)"], log)
    with pytest.raises(Unavailable, match="No such file"):
        called([str(tmp_path / "absent")], log)


def test_a_folder_that_was_not_finished_is_begun_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise Unavailable("interrupted")

    with pytest.raises(Unavailable):
        folder_made(tmp_path / "model", fail)
    made = folder_made(tmp_path / "model", lambda folder: folder.mkdir())
    assert list(made.iterdir()) == []
    assert folder_made(tmp_path / "model", fail) == made


def test_peers_get_neither_our_python_nor_our_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    found = environment.environ(MORE="x")
    assert found["MORE"] == "x"
    assert not {"PYTHONPATH", "OMP_NUM_THREADS"} & found.keys()


def test_torch_is_a_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CPU_INDEX", "https://mirror.example/cpu")
    local, remote = torch_cpu("2.0")
    assert "torch==2.0+cpu" in local
    assert "--no-index" in local
    assert remote[-1] == "https://mirror.example/cpu"
