"""Peak memory."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.bench.memory import PeakPss, tree_pss


def test_the_tree_counts_its_children() -> None:
    command = [sys.executable, "-S", "-c", "data = bytearray(b'x' * (64 << 20)); print(flush=True); input()"]
    alone = tree_pss(os.getpid())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_pss(child.pid) > 64 << 20
        assert tree_pss(os.getpid()) > alone + (32 << 20)
        child.communicate(b"\n")


def test_a_process_that_is_gone_counts_nothing() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait()
    assert tree_pss(child.pid) == 0


def test_the_peak_is_the_largest_of_all_looks() -> None:
    sizes = iter([5, 9, 3])
    peak = PeakPss(lambda: next(sizes))
    for _ in range(3):
        peak.look()
    assert peak.bytes == 9


def test_watching_ends_with_a_look() -> None:
    with PeakPss(lambda: 7) as peak:
        pass
    assert peak.bytes == 7
