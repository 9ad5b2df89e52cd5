"""Tests that may be skipped. In CI any other skip is a failure: it would hide a program that is not installed."""

from __future__ import annotations

from collections.abc import Iterable

_EXPECTED = (
    "there is no GPU",
    "needs TRITON_INTERPRET=1: make kernels-check",
    "the interpreter compiles nothing",
    "the interpreter takes tensors on a CPU",
    "refused where options are resolved",
    "this machine's library cuts sums elsewhere",
    "needs root",
    "this processor has no ",
    "no mounts here",
    "cannot mount a small disk",
)


def unexpected(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that are not known, each once."""
    said = {reason.removeprefix("Skipped: ") for reason in reasons}
    return sorted(reason for reason in said if not reason.startswith(_EXPECTED))
