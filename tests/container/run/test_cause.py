"""Reported causes when a child process ends."""

from __future__ import annotations

from container.run.cause import cause_of_death

RULE = "-" * 74


def test_a_signal_is_named() -> None:
    assert cause_of_death("engine", -15, []) == "engine was killed by SIGTERM"
    assert "out of memory" in cause_of_death("engine", -9, [])


def test_the_last_line_of_an_error_is_quoted() -> None:
    lines = ["Traceback (most recent call last):", "  File ...", "RuntimeError: no such tensor", ""]
    assert cause_of_death("engine", 1, lines) == "engine ended with exit code 1: RuntimeError: no such tensor"


def test_the_killed_rank_is_read_from_mpirun_s_message() -> None:
    lines = [
        RULE,
        "prterun noticed that process rank 1 with PID 77 on node vm exited on",
        "signal 9 (Killed).",
        RULE,
    ]
    assert cause_of_death("engine", 137, lines).startswith("engine: rank 1 was killed by SIGKILL")


def test_mpirun_s_message_does_not_hide_the_error_of_the_rank() -> None:
    lines = [
        "MemoryError: cannot allocate the cache",
        RULE,
        "prterun detected that one or more processes exited with non-zero status,",
        "thus causing the job to be terminated. The first process to do so was:",
        "",
        "   Process name: [prterun-vm-12600@1,2]",
        "   Exit code:    3",
        RULE,
    ]
    expected = "engine: rank 2 ended with exit code 3: MemoryError: cannot allocate the cache"
    assert cause_of_death("engine", 3, lines) == expected


def test_the_last_output_of_a_killed_process_is_not_reported_as_the_cause() -> None:
    assert cause_of_death("engine", -9, ["INFO ready"]) == cause_of_death("engine", -9, [])
