"""Expected reasons for skips. In CI any other skip is a failure, since it may hide a missing program."""

from __future__ import annotations

from collections.abc import Iterable

_EXPECTED = (
    "there is no GPU",
    "needs TRITON_INTERPRET=1: make kernels-check",
    "the interpreter compiles nothing",
    "the interpreter accepts tensors on a CPU",
    "refused when options are resolved",
    "needs root",
    "this processor has no ",
    "cannot mount: ",
)


def unexpected(reasons: Iterable[str]) -> list[str]:
    """Return the unexpected reasons, without duplicates."""
    texts = {reason.removeprefix("Skipped: ") for reason in reasons}
    return sorted(reason for reason in texts if not reason.startswith(_EXPECTED))
