"""The library's instruction sets. The thread team: failures to start it, and its heartbeat."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch

from lmi_kernels.cpu import library as installed
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.logit_bounds import LogitBounds
from lmi_kernels.cpu.sampling import logit_thresholds_native
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.cpu.attending import Chunk, Sequences, Shape
from tests.kernels.cpu.conftest import library_path
from tests.kernels.cpu.heads import Head
from tests.kernels.cpu.linears import multiply
from tests.support.cpu_flags import instruction_sets
from tests.support.paths import child_environment
from tests.support.randomness import random_seed
from tests.support.seeds import fresh_generator

_PROGRAM = """
import resource, sys
from pathlib import Path
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.team import Team
library = Library(Path(sys.argv[1]), "")
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # each thread has a stack of some MiB
try:
    Team(library, 10000)
except RuntimeError as error:
    print(error)
print(Team(library, 2).num_threads)
"""


def test_all_instruction_sets_of_the_processor_are_supported(
    open_library: Callable[[str], Library | None],
) -> None:
    supported = [name for name in installed.INSTRUCTIONS if open_library(name) is not None]
    assert supported == instruction_sets()


def test_threads_that_cannot_be_started_are_an_error() -> None:
    path = installed.library_path()
    if path is None:
        pytest.skip("native kernels are not built here")
    if library_path() != path:
        pytest.skip("a sanitizer needs more address space than the test leaves")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path)],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("the system refuses to start 10000 threads; ")
    assert second == "2"


def _attend(library: Library, team: Team) -> Callable[[], object]:
    sequences = Sequences(Storage.FP32, Shape(16, 4, 64, 16), (3000,), random_seed())
    return lambda: sequences.attend(library, team, [Chunk(0, 0, 3000)])


def _multiply(library: Library, team: Team) -> Callable[[], object]:
    weight, x = NativeWeight(team, torch.ones(4096, 2048)), torch.ones(2000, 2048)
    return lambda: multiply(team, weight, x)


def _find_largest(_: Library, team: Team) -> Callable[[], object]:
    """Bounds of equal logits exclude nothing."""
    head, x = Head(team, torch.ones(12800, 1024), max_rows=800), torch.ones(800, 1024)
    return lambda: head.find(x)


def _truncate(_: Library, team: Team) -> Callable[[], object]:
    logits = torch.randn(1, 400000, generator=fresh_generator()).expand(400, -1)
    columns = [torch.full((400,), value) for value in (1.0, 0, 0.9, 0.0)]
    return lambda: logit_thresholds_native(team, logits, *columns)


@pytest.mark.parametrize("make_operation", [_attend, _multiply, _find_largest, _truncate])
def test_a_long_operation_writes_heartbeats(
    library: Library,
    make_operation: Callable[[Library, Team], Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole long prompt in one step takes many seconds, during which the engine must not count as stuck."""
    monkeypatch.setattr(LogitBounds, "max_exact_share", math.inf)  # search, whatever it costs
    team, place, seen, ended = Team(library, 1), ctypes.c_double(), set[float](), Event()
    operation = make_operation(library, team)
    team.show_alive_at(place)

    def watch() -> None:
        while not ended.wait(0.001):
            seen.add(place.value)

    started = time.monotonic()
    watcher = Thread(target=watch)
    watcher.start()
    operation()
    ended.set()
    watcher.join()
    stopped = time.monotonic()
    # Products of the greedy head come after its bounds.
    assert sum(moment > (started + stopped) / 2 for moment in seen) > 8
    assert max(seen) <= stopped
