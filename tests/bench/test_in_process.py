"""Runners, in a process of their own, around an engine that counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from container.measure.bench.figures import figures
from container.measure.bench.workload import BenchRequest
from tests.bench import in_process
from tests.bench.contender import Broken
from tests.bench.environment import environ
from tests.bench.in_process import InProcess
from tests.bench.made_up import FACTS

REQUESTS = [BenchRequest(index, f"prompt {index}", 2, 3) for index in range(5)]

_RUNNER = """
import sys
sys.path.insert(0, {loop!r})
from loop import serve

class Counting:
    def __init__(self, breaks):
        self.versions = {{"counting": "1"}}
        self.breaks = breaks

    def run(self, loop):
        if self.breaks:
            raise RuntimeError("the engine is broken")
        while asked := loop.due():
            for request in asked:
                request.prompt_tokens = len(request.prompt.split())
                request.token_ids = list(range(request.wanted))
                request.token_times = [loop.now() for _ in request.token_ids]
                loop.answered(request, loop.now())

serve(Counting)
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "counting.py").write_text(_RUNNER.format(loop=str(in_process.RUNNERS)))
    monkeypatch.setattr(in_process, "RUNNERS", tmp_path)
    return "counting.py"


def make_peer(runner: str, breaks: bool) -> InProcess:
    return InProcess("peer", FACTS, Path(sys.executable), runner, {"breaks": breaks}, environ())


def test_a_run_has_all_outcomes_in_the_order_of_the_requests(runner: str, tmp_path: Path) -> None:
    running = make_peer(runner, breaks=False).start(tmp_path / "log")
    try:
        assert running.versions == {"counting": "1"}
        for _ in range(2):
            run = running.load(REQUESTS, 2)
            found = figures(run, REQUESTS)
            assert (found.num_errors, found.output_tokens) == (0, 15)
            assert [one.user for one in run.outcomes] == [0, 1, 0, 1, 0]
            assert run.outcomes[2].scheduled == run.outcomes[0].ended
    finally:
        running.end()
    assert running.child.poll() == 0


def test_an_engine_that_breaks_is_told_with_its_last_words(runner: str, tmp_path: Path) -> None:
    running = make_peer(runner, breaks=True).start(tmp_path / "log")
    with pytest.raises(Broken, match="the engine is broken"):
        running.load(REQUESTS, 2)
    running.end()


def test_a_runner_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="No such file"):
        make_peer("absent.py", breaks=False).start(tmp_path / "log")
