"""`python -m tests.gpu.host_step`: measure the host's work in a step of the GPU path, by phase, on any CPU.

The engine is the real one, from a client's message to the message with its tokens: socket, leader, step loop,
scheduler, block manager, and the GPU path's own preparation and decisions. Only the device is left out: kernels and
graphs are not launched, and every token is the same. Real launches take additional time (some 10 us for a graph, more
for an eager step).

Times are microseconds of this thread's CPU time. Figures are medians over steps, then over repeats, with the smallest
and the largest repeat. Each repeat is a process of its own. Other processes still compete for caches and cores: on a
busy machine the smallest repeat is the most reliable, and only trees measured in turn are comparable.

    python -m tests.gpu.host_step                      # 256, 64 and 1 sequences, and 256 with arrivals
    python -m tests.gpu.host_step --against ../before  # compare with another copy of the repository, in turn
    python -m cProfile -s tottime -m tests.gpu.host_step --json arrivals  # profile the Python functions

To compare, copy the repository (`cp -r`, without .venv) before you change it. This file measures both copies: it
imports `engines` and `lmi_kernels` from each, and requires only the names that it uses.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import zmq

import lmi_kernels
from engines.config import SchedulerConfig
from engines.core import EngineInfo, Request, SampledToken, SamplingParams, SchedulerSettings
from engines.engine_socket import EngineSocket
from engines.health import StatusBoard
from engines.kv_cache import KvCache
from engines.models.config import AttentionSpec
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.leader import Leader
from engines.mpi.runner.decode_graphs import DecodeOutputs, batch_sizes
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.gpu_steps import GpuSteps
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.step_runner import PendingTokens, StepResult
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step_plan import StepPlan
from engines.mpi.trace import StepTrace
from engines.parallel import Communicator
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from engines.wire import Drain, Outputs, Submit, ToEngine, decode_to_client, encode

_VOCAB_SIZE, _BLOCK_SIZE, _MAX_MODEL_LEN = 128_256, 16, 2048
_TOKEN = 7
_SAMPLING = SamplingParams(1, temperature=0.8, top_p=0.95, stop_token_ids=(128_001, 128_008, 128_009))
_INFO = EngineInfo("host", "MPI", 1, "none", "bf16", 0, 0, _BLOCK_SIZE, 0, _MAX_MODEL_LEN, True)
_EXCLUDED = "client"
"""Phase of the client's work, which is excluded from the results."""

Step = dict[str, float]
"""Microseconds by phase."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests with random prompts."""

    running: int
    """Concurrent requests: when one finishes the next one starts."""
    outputs: tuple[int, int]
    """Smallest and largest number of tokens that a request generates."""
    requests: int
    decodes_only: bool
    """True: count only steps in which all sequences run with one token each. False: count all steps in which more than
    half of the sequences run."""
    prompts: tuple[int, int] = (450, 550)


LOADS = {
    "256": Load(256, (500, 500), 256, True),
    "64": Load(64, (500, 500), 64, True),
    "1": Load(1, (500, 500), 1, True),
    "arrivals": Load(256, (1, 1000), 600, False),
}
TINY = Load(3, (4, 6), 5, False, (5, 20))


class Phases:
    """Time by phase. Time of a nested phase counts only for the inner one."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._stack = ["loop"]
        self._since = time.thread_time_ns()

    def take(self) -> Step:
        """Return the times since the last call."""
        self._charge()
        times, self._times = self._times, {}
        times.pop(_EXCLUDED, None)
        return {phase: nanoseconds / 1e3 for phase, nanoseconds in times.items()}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def watch(self, owner: object, method: str, name: str) -> None:
        """Time all calls of this object's method as a phase."""
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any) -> Any:
            self._charge()
            self._stack.append(name)
            try:
                return call(*arguments)
            finally:
                self._charge()
                self._stack.pop()

        setattr(owner, method, timed)

    def _charge(self) -> None:
        now = time.thread_time_ns()
        phase = self._stack[-1]
        self._times[phase] = self._times.get(phase, 0) + now - self._since
        self._since = now


class _NoGraphs:
    """Replacement of `DecodeGraphs` that has a graph for every size. The graphs compute nothing."""

    def __init__(self, outputs: DecodeOutputs, largest: int) -> None:
        self._outputs = outputs
        self._sizes = batch_sizes(largest)

    def bucket(self, num_seqs: int) -> int:
        return next((size for size in self._sizes if size >= num_seqs), 0)

    def replay(self, size: int, numbers: torch.Tensor) -> DecodeOutputs:
        return self._outputs


class _TimedTokens:
    def __init__(self, pending: PendingTokens, phases: Phases) -> None:
        self.host_rows = pending.host_rows
        self._pending = pending
        self._phases = phases

    def wait(self) -> list[SampledToken]:
        with self._phases.phase("take"):
            return self._pending.wait()


class HostSteps(GpuSteps):
    """The GPU path without a GPU: the results of the kernels are constants."""

    def __init__(self, num_seqs: int, num_blocks: int, phases: Phases) -> None:
        device = torch.device("cpu")
        cache = KvCache(1, 1, num_blocks, _BLOCK_SIZE, 1, torch.float32, device)
        largest = LargestStep(num_seqs, num_seqs, _MAX_MODEL_LEN)
        model: Any = None
        config: Any = SimpleNamespace(
            head_dim=16, vocab_size=_VOCAB_SIZE, attention=(AttentionSpec(0.25, rotary=None),)
        )
        super().__init__(model, cache, {}, config, 1, Communicator(), largest, Stopwatch(lambda: 0.0))
        self._phases = phases
        self._fixed = DecodeOutputs(
            torch.full((num_seqs,), _TOKEN), torch.ones(num_seqs, dtype=torch.bool), None
        )
        graphs: Any = _NoGraphs(self._fixed, num_seqs)
        self._graphs = graphs
        self.decodes_only = False
        self.num_seqs = 0

    def prepare(self, plan: StepPlan) -> Any:
        self.num_seqs = len(plan.rows)
        self.decodes_only = plan.num_tokens == len(plan.rows)
        return super().prepare(plan)

    def compute(self, *arguments: Any) -> StepResult:
        result = super().compute(*arguments)
        with self._phases.phase(_EXCLUDED):
            if result.pending_tokens is None:
                return result
            return replace(result, pending_tokens=_TimedTokens(result.pending_tokens, self._phases))

    def _compute_eagerly(self, *arguments: Any) -> Any:
        return self._fixed, []


class _Client(EngineSocket):
    """Engine socket with its client on the same thread. The client runs whenever the engine polls for messages."""

    def __init__(self, address: str, load: Load, steps: HostSteps, phases: Phases) -> None:
        super().__init__(address)
        self.times: list[Step] = []
        self._load = load
        self._steps = steps
        self._phases = phases
        self._waiting = list(_requests(load))
        self._num_sent = 0
        self._num_finished = 0
        self._peer = self._context.socket(zmq.DEALER)
        self._peer.setsockopt(zmq.SNDHWM, 0)
        self._peer.setsockopt(zmq.RCVHWM, 0)
        self._peer.connect(address)

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        with self._phases.phase(_EXCLUDED):
            self._record(self._phases.take())
            self._run_client()
        with self._phases.phase("receive"):
            return iter(list(super().receive(timeout)))

    def close(self) -> None:
        self._peer.close(linger=0)
        super().close()

    def _record(self, times: Step) -> None:
        steps, load = self._steps, self._load
        counts = steps.num_seqs > load.running // 2
        if load.decodes_only:
            counts = steps.decodes_only and steps.num_seqs == load.running
        if counts and "take" in times:
            self.times.append(times)

    def _run_client(self) -> None:
        while self._peer.poll(0):
            message = decode_to_client(self._peer.recv())
            if isinstance(message, Outputs):
                if any(output.error_kind for output in message.outputs):
                    raise AssertionError("a request failed")
                self._num_finished += sum(output.finished for output in message.outputs)
        if self._num_finished == self._load.requests:
            self._peer.send(encode(Drain(1.0)))
            return
        while self._waiting and self._num_sent - self._num_finished < self._load.running:
            self._peer.send(encode(Submit((self._waiting.pop(),))))
            self._num_sent += 1


def _requests(load: Load) -> Iterator[Request]:
    rng = random.Random(0)
    for number in range(load.requests):
        prompt = tuple(rng.randrange(_VOCAB_SIZE) for _ in range(rng.randint(*load.prompts)))
        sampling = replace(_SAMPLING, max_new_tokens=rng.randint(*load.outputs), seed=number)
        yield Request(f"{rng.getrandbits(128):032x}", prompt, sampling, time.monotonic())


def measure(load: Load, folder: Path) -> list[Step]:
    """Serve the whole load. Return the steps that count."""
    phases = Phases()
    num_blocks = load.running * _MAX_MODEL_LEN // _BLOCK_SIZE
    steps = HostSteps(load.running, num_blocks, phases)
    blocks = make_block_manager(num_blocks, _BLOCK_SIZE, paged=True, prefix_caching=True)
    settings = SchedulerSettings(load.running, 8192, 8192, max_waiting=100_000)
    scheduler = Scheduler(SchedulerConfig(settings, "max_utilization"), blocks, _MAX_MODEL_LEN, _VOCAB_SIZE)
    stopwatch = Stopwatch(time.perf_counter)
    board = StatusBoard.create(folder / "board", 1)
    executor = StepExecutor(steps, Communicator(), board, stopwatch)
    sampler = Sampler(_VOCAB_SIZE, torch.device("cpu"))
    largest = LargestStep.of(settings, _MAX_MODEL_LEN)
    core = EngineCore(scheduler, blocks, executor, sampler, stopwatch, StepTrace(""), largest)
    socket = _Client(f"ipc://{folder}/socket", load, steps, phases)
    leader = Leader(core, _INFO, socket, board, stopwatch)
    for owner, method, name in (
        (core, "step", "step"),
        (core, "_record_step", "count"),
        (scheduler, "expire", "schedule"),
        (scheduler, "schedule", "schedule"),
        (scheduler, "begin", "begin"),
        (scheduler, "finish", "finish"),
        (executor, "run_on_all_ranks", "run"),
        (steps, "update", "prepare"),
        (steps, "prepare", "prepare"),
        (steps, "compute", "compute"),
        (leader, "_send", "send"),
        (socket, "send", "wire"),
    ):
        phases.watch(owner, method, name)
    with mock.patch.object(lmi_kernels, "update_block_tables", _launch_nothing):
        leader.serve()
    return socket.times


def _launch_nothing(*_: object) -> None:
    """Replacement of a kernel launch."""


def medians(steps: Sequence[Step]) -> Step:
    """Return the medians by phase, and of whole steps as `all`. A phase that most steps lack gets its mean."""
    result: Step = {}
    for phase in sorted({phase for step in steps for phase in step}):
        values = [step.get(phase, 0.0) for step in steps]
        result[phase] = statistics.median(values) or statistics.fmean(values)
    totals = [sum(step.values()) for step in steps]
    result["all"] = statistics.median(totals)
    result["all, mean"] = statistics.fmean(totals)
    return result


def _measure_in_process(name: str) -> Step:
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # as the worker does
    with tempfile.TemporaryDirectory() as folder:
        return medians(measure(LOADS[name], Path(folder)))


def _measure_in_subprocess(tree: Path, name: str) -> Step:
    """Measure one repeat in a process of its own, with the engine of the repository copy `tree`."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'kernels'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", __file__, "--json", name]
    process = subprocess.run(command, env=environment, cwd=tree, stdout=subprocess.PIPE, check=True)
    result: Step = json.loads(process.stdout)
    return result


def _print(name: str, columns: Sequence[Sequence[Step]]) -> None:
    """Print a table. columns: the repeats of each tree."""
    print(f"\n{name}: us per step")
    for phase in dict.fromkeys(phase for repeats in columns for step in repeats for phase in step):
        cells = []
        for repeats in columns:
            values = [step.get(phase, 0.0) for step in repeats]
            cells.append(
                f"{statistics.median(values):9.1f}  ({min(values):.1f} to {max(values):.1f})".ljust(34)
            )
        print(f"  {phase:10}", *cells)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--against", type=Path, help="another copy of the repository, shown in the first column"
    )
    parser.add_argument(
        "--json", choices=list(LOADS), help="measure one repeat in this process and print JSON"
    )
    arguments = parser.parse_args(argv)
    if arguments.json:
        print(json.dumps(_measure_in_process(arguments.json)))
        return 0
    here = Path(__file__).parents[2]
    trees = [here] if arguments.against is None else [arguments.against.resolve(), here]
    for name in arguments.loads:
        # In turn, so that other load on the machine affects all trees alike.
        repeats = [[_measure_in_subprocess(tree, name) for tree in trees] for _ in range(arguments.repeats)]
        _print(name, list(zip(*repeats, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
