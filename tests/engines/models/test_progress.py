"""Log messages while weights are loaded."""

from __future__ import annotations

from engines.models.progress import LoadProgress
from tests.support.logs import Logs


def test_an_hour_of_loading_logs_a_few_lines_with_bytes_and_rate(logs: Logs) -> None:
    now = 100.0
    progress = LoadProgress(lambda: now)
    progress.start(7200 * 10**9)
    for tensor in range(1, 7201):
        now = 100 + tensor / 2
        progress.add(10**9)
    assert 5 <= len(logs.messages) <= 30
    assert logs.messages[0] == "weights: 10.00 of 7200.00 GB read, 2.00 GB/s"
    assert logs.messages[-1] == "weights: 7200.00 of 7200.00 GB read, 2.00 GB/s"


def test_a_fast_load_logs_one_line(logs: Logs) -> None:
    now = 0.0
    progress = LoadProgress(lambda: now)
    progress.start(4000)
    for num_bytes in (1000, 1000, 2000):
        now += 1
        progress.add(num_bytes)
    assert logs.messages == ["weights: 0.00 of 0.00 GB read, 0.00 GB/s"]
