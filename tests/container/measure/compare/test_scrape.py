"""Figures read from `/metrics`: batch sizes, counters, use and waste of the KV cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import pytest

from container.measure.compare.scrape import (
    BatchSizes,
    MetricsSnapshot,
    NoMetrics,
    RoundCounters,
    kv_use,
    parse_metrics,
    sampling,
    scrape,
)
from tests.support.loopback import LoopbackServer, QuietHandler

_TEXT = """\
# HELP lmi_kv_blocks_total kv blocks total
# TYPE lmi_kv_blocks_total gauge
lmi_kv_blocks_total 100.0
# TYPE lmi_kv_blocks_free gauge
lmi_kv_blocks_free 90.0
# TYPE lmi_kv_blocks_cached gauge
lmi_kv_blocks_cached 2.0
# TYPE lmi_kv_slots_total gauge
lmi_kv_slots_total 3200.0
# TYPE lmi_kv_slots_unfilled gauge
lmi_kv_slots_unfilled 64.0
# TYPE lmi_requests_running gauge
lmi_requests_running 3.0
# TYPE lmi_requests_waiting gauge
lmi_requests_waiting 0.0
# TYPE lmi_batch_size histogram
lmi_batch_size_bucket{le="1.0"} 2.0
lmi_batch_size_bucket{le="4.0"} 6.0
lmi_batch_size_bucket{le="+Inf"} 6.0
lmi_batch_size_count 6.0
lmi_batch_size_sum 18.0
"""


def snapshot(values: Mapping[str, float]) -> MetricsSnapshot:
    return parse_metrics("".join(f"{name} {value}\n" for name, value in values.items()))


def kv_snapshot(allocated_blocks: float, unfilled: float) -> MetricsSnapshot:
    """A snapshot of a KV cache with 10 blocks of 16 slots."""
    values = {
        "blocks_total": 10,
        "blocks_free": 10 - allocated_blocks,
        "blocks_cached": 0,
        "slots_total": 160,
    }
    return snapshot({f"lmi_kv_{name}": v for name, v in (values | {"slots_unfilled": unfilled}).items()})


@pytest.mark.parametrize(
    ("before", "after", "batches"),
    [
        ("lmi_batch_size_count 2.0\nlmi_batch_size_sum 2.0\n", _TEXT, BatchSizes(4, 4.0)),
        ("", _TEXT, BatchSizes(6, 3.0)),
        (_TEXT, _TEXT, None),
        (_TEXT, "", None),
    ],
    ids=["both", "histogram is new", "no batch ran", "no histogram"],
)
def test_batches_of_a_round_are_the_difference_of_two_histograms(
    before: str, after: str, batches: BatchSizes | None
) -> None:
    assert parse_metrics(after).batches_since(parse_metrics(before)) == batches


def test_counters_of_a_round_are_differences_and_none_if_the_server_lacks_them() -> None:
    before = snapshot({"lmi_preemptions_total": 2.0, "lmi_prompt_tokens_total": 100.0})
    after = snapshot(
        {
            "lmi_preemptions_total": 5.0,
            "lmi_prompt_tokens_total": 300.0,
            "lmi_tokens_generated_total": 40.0,
            "lmi_prefix_hit_tokens_total": 50.0,
            "lmi_recomputed_tokens_total": 10.0,
        }
    )
    found = after.counters_since(before)
    assert found == RoundCounters(
        prompt_tokens=200, tokens_generated=40, preemptions=3, recomputed_tokens=10, prefix_hit_tokens=50
    )
    assert found.prefix_hit_share == 0.25
    # 150 prompt tokens and 40 generated ones were computed once, 10 were recomputed.
    assert found.wasted_share == 10 / 200
    assert RoundCounters() == snapshot({}).counters_since(before)
    assert RoundCounters().wasted_share is None
    assert RoundCounters().prefix_hit_share is None
    padded = RoundCounters(prompt_tokens=60, tokens_generated=40, padding_tokens=20, ended_row_tokens=80)
    assert padded.wasted_share == 0.5


def of_copies(**values: tuple[float, float]) -> MetricsSnapshot:
    """Metrics of two copies of a model."""
    lines = (
        f'lmi_{name}{{copy="{copy}"}} {value}\n'
        for name, both in values.items()
        for copy, value in enumerate(both)
    )
    return parse_metrics("".join(lines))


def test_a_copy_that_restarted_during_the_round_counts_from_zero() -> None:
    before = of_copies(batch_size_count=(100, 100), batch_size_sum=(800, 800), preemptions_total=(7, 7))
    after = of_copies(batch_size_count=(300, 5), batch_size_sum=(1000, 20), preemptions_total=(8, 0))
    assert after.batches_since(before) == BatchSizes(205, 220 / 205)
    assert after.counters_since(before) == RoundCounters(preemptions=1)


def test_the_counters_of_a_round_are_unknown_if_a_copy_is_missing_at_its_end() -> None:
    before = of_copies(batch_size_count=(100, 100), batch_size_sum=(800, 800), preemptions_total=(7, 7))
    after = parse_metrics('lmi_preemptions_total{copy="0"} 9\nlmi_batch_size_count{copy="0"} 300\n')
    assert after.batches_since(before) is None
    assert after.counters_since(before) == RoundCounters()


def test_allocated_slots_exclude_free_and_cached_blocks() -> None:
    assert parse_metrics(_TEXT).kv_slots == (3200.0, 8 * 32.0, 64.0)
    without_cache = parse_metrics("lmi_engine_up 1\n")
    assert without_cache.kv_slots is None
    assert kv_use([without_cache]) is None


def test_a_server_is_idle_if_no_request_runs_or_waits() -> None:
    assert not parse_metrics(_TEXT).idle
    assert parse_metrics(_TEXT.replace("running 3.0", "running 0.0")).idle
    assert not snapshot({"lmi_requests_running": 0, "lmi_requests_waiting": 1}).idle
    assert not snapshot({"lmi_engine_up": 0, "lmi_requests_running": 0, "lmi_requests_waiting": 0}).idle
    assert snapshot({"lmi_engine_up": 1}).idle


def test_kv_use_has_mean_peak_and_waste_as_a_share_of_allocated_slots() -> None:
    use = kv_use([kv_snapshot(0, 0), kv_snapshot(2, 16), kv_snapshot(4, 8)])
    assert use is not None
    assert use.num_samples == 3
    assert (use.mean_allocated, use.peak_allocated) == (32.0, 64.0)
    assert (use.mean_share, use.peak_share) == (0.2, 0.4)
    assert use.waste is not None
    assert math.isclose(use.waste, 24 / 96)
    unused = kv_use([kv_snapshot(0, 0)])
    assert unused is not None
    assert unused.waste is None


def test_text_in_another_format_is_refused() -> None:
    with pytest.raises(NoMetrics, match="Prometheus"):
        parse_metrics("<html>503 Service Unavailable</html>")


def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(NoMetrics, match=r"cannot read http://127\.0\.0\.1:9/metrics"):
        scrape("http://127.0.0.1:9")


class _Metrics(QuietHandler):
    def do_GET(self) -> None:
        self.respond(200, _TEXT.encode(), {})


@pytest.mark.usefixtures("unreachable_proxy")
def test_a_server_on_this_machine_is_read_without_the_proxy() -> None:
    with LoopbackServer(_Metrics) as server:
        assert scrape(server.url) == parse_metrics(_TEXT)


def test_the_sampler_continues_after_a_failed_sample_and_stops_at_the_end() -> None:
    calls: list[int] = []
    enough = threading.Event()

    def take_snapshot() -> MetricsSnapshot:
        calls.append(len(calls))
        if len(calls) == 2:
            raise NoMetrics("busy")
        if len(calls) == 4:
            enough.set()
        return snapshot({"call": len(calls)})

    with sampling(take_snapshot, seconds=0.001) as snapshots:
        assert enough.wait(200.0)
    seen = [int(snapshot.samples["call"]) for snapshot in snapshots]
    assert seen[:3] == [1, 3, 4]
    count = len(calls)
    assert len(seen) == count - 1
    assert not any(thread.name == "metrics-sampler" for thread in threading.enumerate())
