"""With measured step times, the simulator reproduces the schedule of the real engine: all steps and counters."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from container.measure.bench.arrivals import UserSession
from container.measure.bench.workload import BenchRequest
from container.measure.simulate import rolling
from container.measure.simulate.calibration import calibrate
from container.measure.simulate.clients import VirtualSocket
from container.measure.simulate.clock import VirtualClock
from container.measure.simulate.step_times import StepSeconds
from engines.core import Request, SamplingParams
from engines.mpi.trace import StepTrace
from tests.container.measure.simulate.made_up import rolling_server
from tests.support.core_lab import CoreLab, Mode
from tests.support.tiny_models import VOCAB_SIZE, save_llama

BLOCK_SIZE, NUM_REQUESTS = 4, 40
MODES = [
    Mode(max_num_batched_tokens=24),
    # Too few blocks: sequences are preempted and recomputed.
    Mode(max_num_batched_tokens=24, num_blocks=24),
    Mode("guaranteed_no_evict", chunked_prefill=False, max_num_seqs=5),
    Mode("guaranteed_no_evict", paged=False, prefix_caching=False, num_blocks=60),
    Mode("static_batch", max_num_seqs=4, scheduling_policy="fair"),
]
_COMPARED_FIELDS = ("plan", "ends", "running", "waiting", "blocks_used", "blocks_cached", "preemptions")


class MeasuredTimes:
    """Return the times of the recorded steps in order."""

    def __init__(self, starts: Sequence[float]) -> None:
        self._seconds = iter([*(after - at for at, after in itertools.pairwise(starts)), 1.0])

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        return StepSeconds(0.0, next(self._seconds))

    def describe(self) -> str:
        return "measured"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, max_position_embeddings=128)
    return folder


@pytest.fixture(scope="module")
def lab(model: Path, tmp_path_factory: pytest.TempPathFactory) -> CoreLab:
    folder = tmp_path_factory.mktemp("board")
    return CoreLab(model, folder, block_size=BLOCK_SIZE, num_blocks=128, max_model_len=128)


def make_prompts() -> list[tuple[int, ...]]:
    """Every third prompt shares a prefix with the first one."""
    rng = random.Random(5)
    prompts = [[rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(3, 40))] for _ in range(NUM_REQUESTS)]
    for prompt in prompts[::3]:
        prompt[:16] = prompts[0][:16]
    return [tuple(prompt) for prompt in prompts]


def record(lab: CoreLab, mode: Mode, file: Path) -> list[dict[str, Any]]:
    """Run the real engine; requests arrive between its steps."""
    rng = random.Random(7)
    trace = StepTrace(str(file))
    core = lab.start(mode, trace).core
    waiting = list(enumerate(make_prompts()))
    while waiting or core.has_work:
        for _ in range(min(len(waiting), rng.choice((0, 0, 0, 1, 2)) or not core.has_work)):
            index, prompt = waiting.pop(0)
            core.add(Request(str(index), prompt, SamplingParams(rng.randint(1, 30)), 0.0))
        core.step()
    trace.close()
    return [json.loads(line) for line in file.read_text().splitlines()]


def replay(model: Path, mode: Mode, real: list[dict[str, Any]], file: Path) -> list[dict[str, Any]]:
    """Run the simulator: requests arrive between the same steps, which take the recorded times."""
    times = [step["time"] - real[0]["time"] + 1.0 for step in real]
    prompts = make_prompts()
    sessions = []
    for before, at, step in zip([0.0, *times], times, real, strict=False):
        for arrival in step["arrivals"]:
            index = int(arrival["id"])
            request = BenchRequest(index, "", arrival["prompt_tokens"], arrival["max_new_tokens"])
            sessions.append(UserSession((before + at) / 2 if before else at, (request,)))
    options = {**dataclasses.asdict(mode), "num_blocks": mode.num_blocks or 128}
    server = rolling_server(model, block_size=BLOCK_SIZE, **options.pop("more"), **options)
    clock = VirtualClock()
    socket = VirtualSocket(
        clock, sessions, lambda request: prompts[request.index], 1e9, 1e9, lambda outcome: None
    )
    board = file.parent / "board"
    board.mkdir()
    rolling.serve(server, server.engine, MeasuredTimes(times), clock, socket, board, str(file))
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_measured_times_reproduce_the_schedule_of_the_real_engine(
    mode: Mode, lab: CoreLab, model: Path, tmp_path: Path
) -> None:
    real = record(lab, mode, tmp_path / "real.jsonl")
    virtual = replay(model, mode, real, tmp_path / "virtual.jsonl")
    assert len(real) > 60
    for real_step, virtual_step in zip(real, virtual, strict=True):
        assert {name: real_step[name] for name in _COMPARED_FIELDS} == {
            name: virtual_step[name] for name in _COMPARED_FIELDS
        }
    assert calibrate(tmp_path / "real.jsonl").num_fitted > 40
    if mode.num_blocks == 24:
        assert real[-1]["preemptions"] > 0
