"""The stopwatch, with a clock that the test controls."""

from __future__ import annotations

from engines.stopwatch import Stopwatch


def test_parts_add_up_between_resets() -> None:
    clock = iter([1.0, 3.0, 4.5, 10.0, 10.25]).__next__
    stopwatch = Stopwatch(clock)
    stopwatch.start()  # 1
    stopwatch.stop("schedule")  # 3
    stopwatch.stop("sample")  # 4.5
    stopwatch.add("model", 0.5)
    stopwatch.add("model", 0.25)
    assert stopwatch.reset() == {"schedule": 2.0, "sample": 1.5, "model": 0.75}
    stopwatch.start()  # 10
    stopwatch.stop("schedule")  # 10.25
    assert stopwatch.reset() == {"schedule": 0.25}


def test_show_alive_is_called_at_the_end_of_each_part() -> None:
    stops: list[str] = []
    stopwatch = Stopwatch(lambda: 0.0, show_alive=lambda: stops.append("alive"))
    stopwatch.start()
    stopwatch.add("model", 1.0)
    assert stops == []
    stopwatch.stop("attention")
    stopwatch.stop("attention")
    assert stops == ["alive", "alive"]
