"""lmi compare: of 60 real pairs of equals at most 6 are called different; 5 % slower is found 9 of 10 times.

    python -m tests.verify.real_comparisons [--equal N] [--slowed N]

Rounds are short and use the bundled model. Two configurations that differ only in a limit that is never reached are
compared 60 times, with the default number of rounds. For a true difference, signals pause the engine of one of two
servers for 4.8 % of the time, a few milliseconds each, so that its clients see a server that takes 5 % longer. That
comparison runs until the interval of tokens/s is 3 % wide to each side, for at most 120 rounds. `--equal 60 --slowed
0` runs only one part.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.server import properties_text
from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

EQUAL = ("--users", "6", "--requests", "12", "--input-tokens", "16", "--output-tokens", "8")
SLOWED = ("--users", "10", "--requests", "20", "--input-tokens", "24", "--output-tokens", "12")
"""One or two seconds per round."""
UNTIL = ("--precision", "3%", "--max-rounds", "120")
MAX_CALLED_DIFFERENT, MIN_FOUND = 0.1, 0.9
OPTIONS: dict[str, object] = {"kv_cache_gb": 0.2}
BATCH_SIZES = {"a": 16, "b": 17}
"""Neither limit is ever reached. Configurations that differ in live settings share a server, which saves starts."""
SLOWED_BY = 0.05
_PERIOD_SECONDS = 0.1


def verify(lab: Lab, report: Report, *, equal: int = 60, slowed: int = 10) -> None:
    """Numbers of comparisons of each kind."""
    folder = lab.folder / "real-comparisons"
    for name, size in BATCH_SIZES.items():
        (folder / name).mkdir(parents=True)
        text = properties_text(lab.model, **OPTIONS, max_rolling_batch_size=size)
        (folder / name / "serving.properties").write_text(text)
    if equal:
        _check_equal(folder, report, equal)
    if slowed:
        _check_slowed(lab, folder, report, slowed)


def _check_equal(folder: Path, report: Report, count: int) -> None:
    different = 0
    for number in range(count):
        arguments = ("compare", "a", "b", *_seed(number), *EQUAL)
        ratios = _ratios(run_lmi(folder, *arguments))
        measures = [key for key, one in ratios.items() if one["low"] > 1 or one["high"] < 1]
        different += bool(measures)
        report.figure(
            f"equal, {number + 1}: {_describe(ratios)}; different: {', '.join(measures) or 'nothing'}"
        )
    report.require(
        different <= MAX_CALLED_DIFFERENT * count,
        f"{different} of {count} comparisons of equal configurations call a measure different",
    )


def _check_slowed(lab: Lab, folder: Path, report: Report, count: int) -> None:
    found = 0
    for number in range(count):
        ratios = _compare_slowed(lab, folder, number)
        found += ratios["output_tokens_per_second"]["high"] < 1
        report.figure(f"slowed, {number + 1}: {_describe(ratios)}")
    report.require(
        found >= MIN_FOUND * count,
        f"{found} of {count} comparisons with a server slowed by {SLOWED_BY:.0%} find it slower",
    )


def _compare_slowed(lab: Lab, folder: Path, number: int) -> dict[str, Any]:
    name = f"{folder.name}/slowed-{number}"
    with (
        lab.server(f"{name}/a", **OPTIONS) as usual,
        lab.server(f"{name}/b", **OPTIONS) as other,
        _slowed(other.ranks().values()),
    ):
        options = ("--tokenizer", str(lab.model), *_seed(number), *UNTIL, *SLOWED)
        arguments = ("compare", usual.base_url, other.base_url, *options)
        return _ratios(run_lmi(folder, *arguments))


def _seed(number: int) -> tuple[str, ...]:
    return ("--seed", str(number))


def _ratios(data: dict[str, Any]) -> dict[str, Any]:
    """Return the ratios of the second configuration to the first, by measure."""
    return dict(data["summary"][1]["ratios_to_first"])


def _describe(ratios: dict[str, Any]) -> str:
    speed = ratios["output_tokens_per_second"]
    bounds = f"{speed['low']:.3f} to {speed['high']:.3f}"
    return f"tokens/s {speed['value']:.3f}x ({bounds}) in {speed['count']} rounds"


@contextmanager
def _slowed(ranks: Collection[psutil.Process]) -> Iterator[None]:
    """Stop processes for a share of the time, so that everything they do takes `SLOWED_BY` longer."""
    stopped = _PERIOD_SECONDS * SLOWED_BY / (1 + SLOWED_BY)
    stopping = threading.Event()

    def slow() -> None:
        while not stopping.is_set():
            began = time.monotonic()
            for rank in ranks:
                rank.send_signal(signal.SIGSTOP)
            time.sleep(stopped)
            for rank in ranks:
                rank.send_signal(signal.SIGCONT)
            # A sleep may take longer than requested. Then the processes also run for longer.
            stopping.wait((time.monotonic() - began) / SLOWED_BY)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


if __name__ == "__main__":
    run_alone(verify)
