"""The distribution of requests over copies that do nothing by themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import RequestStream
from engines.copies.known_prefixes import KnownPrefixes
from engines.copies.replica_set import ReplicaSet
from engines.copies.settings_lock import settings_lock
from engines.core import AbortReason, RequestOutput
from engines.errors import EngineDied, Unavailable
from engines.health import EngineState, Health
from tests.engines.copies.fakes import SERVES, FakeCopy
from tests.engines.mpi.fakes import make_request

FAILED = Health(EngineState.FAILED, "killed", 0.0)
LOADS = Health(EngineState.STARTING, "", 0.0)
STUCK = Health(EngineState.READY, "", 1e9)


def make_set(count: int = 2, block_tokens: int = 4) -> tuple[ReplicaSet, list[FakeCopy]]:
    copies = [FakeCopy() for _ in range(count)]
    return ReplicaSet(copies, KnownPrefixes(count, block_tokens), Path("/dev/null")), copies


def counts(copies: Sequence[FakeCopy]) -> list[int]:
    return [len(copy.requests) for copy in copies]


def take_all(stream: RequestStream) -> list[RequestOutput]:
    outputs = []
    while (output := stream.next(0)) is not None:
        outputs.append(output)
    return outputs


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("submit", "token", "finish", "abort", "fail", "recover")),
        st.integers(0, 1000),
        st.integers(1, 40),
    ),
    max_size=60,
)


@given(count=st.integers(2, 4), events=EVENTS)
def test_whatever_happens_loads_are_those_of_open_requests_and_the_least_is_chosen(
    count: int, events: list[tuple[str, int, int]]
) -> None:
    both, copies = make_set(count)
    streams: dict[str, RequestStream] = {}
    for number, (event, pick, size) in enumerate(events):
        copy = copies[pick % count]
        open_ids = sorted(streams)
        if event == "submit":
            request = make_request(str(number), [(pick + i) % 7 for i in range(size)], size)
            before, healthy = both.loads, [c.state is SERVES for c in copies]
            streams[request.id] = both.submit(request)
            chosen = next(i for i, c in enumerate(copies) if c.requests[-1:] == [request])
            if any(healthy):
                assert healthy[chosen]
                # It is ahead of no other copy by more than the prompt, of which it may know all.
                best = min(load for load, serves in zip(before, healthy, strict=True) if serves)
                assert before[chosen] <= best + size
        elif event == "fail":
            copy.state = FAILED
            copy.fail_all()
        elif event == "recover":
            copy.state = SERVES
        elif open_ids:
            request_id = open_ids[pick % len(open_ids)]
            owner = next(c for c in copies if any(r.id == request_id for r in c.requests))
            if event == "abort":
                both.abort(request_id, AbortReason.CLIENT_LEFT)
                del streams[request_id]
            elif request_id in owner.streams and event == "finish":
                owner.finish(request_id)
            elif request_id in owner.streams:
                owner.streams[request_id].put(RequestOutput(request_id, (1, 2)))
        for request_id, stream in list(streams.items()):
            if any(output.finished for output in take_all(stream)):
                del streams[request_id]
        assert all(load >= 0 for load in both.loads)
        assert bool(sum(both.loads)) == bool(streams)
    for request_id in streams:
        both.abort(request_id, AbortReason.CLIENT_LEFT)
    assert both.loads == [0] * count


@pytest.mark.parametrize("num_copies", [2, 3, 5])
@pytest.mark.parametrize("open_requests", [0, 10])
def test_shares_are_even(num_copies: int, open_requests: int) -> None:
    """Prompts without a common prefix, of random lengths, a few of them at a time."""
    both, copies = make_set(num_copies)
    rng = random.Random(1)
    running: list[str] = []
    for number in range(1000):
        prompt = [rng.randrange(10_000) for _ in range(rng.randrange(1, 200))]
        both.submit(make_request(str(number), prompt, rng.randrange(1, 400)))
        running.append(str(number))
        while len(running) > open_requests:
            both.abort(running.pop(rng.randrange(len(running))), AbortReason.STOP_SEQUENCE)
    for count in counts(copies):
        assert abs(count / 1000 - 1 / num_copies) < 0.05


def test_a_known_prefix_decides_among_idle_copies() -> None:
    both, copies = make_set()
    first = make_request("a", range(100))
    both.submit(first)
    both.abort("a", AbortReason.CLIENT_LEFT)
    for number in range(5):
        both.submit(make_request(str(number), [*range(100), number]))
        both.abort(str(number), AbortReason.CLIENT_LEFT)
    assert sorted(counts(copies)) == [0, 6]


def test_a_known_prefix_does_not_outweigh_a_larger_load() -> None:
    both, copies = make_set()
    both.submit(make_request("a", range(100), max_new_tokens=30))
    # The second one would find 100 tokens of its prompt behind 130 others.
    both.submit(make_request("b", range(100), max_new_tokens=30))
    assert counts(copies) == [1, 1]
    # By now both know the prompt.
    both.abort("b", AbortReason.CLIENT_LEFT)
    both.submit(make_request("c", range(100), max_new_tokens=30))
    assert copies[1].requests[-1].id == "c"


def test_without_a_prefix_cache_prompts_do_not_matter() -> None:
    copies = [FakeCopy(), FakeCopy()]
    both = ReplicaSet(copies, KnownPrefixes(2, max_blocks=0), Path("/dev/null"))
    for number in range(6):
        both.submit(make_request(str(number), range(100)))
        both.abort(str(number), AbortReason.CLIENT_LEFT)
    assert counts(copies) == [3, 3]


def test_a_copy_that_was_started_again_knows_no_prefix() -> None:
    both, copies = make_set()
    both.submit(make_request("a", range(100)))
    both.abort("a", AbortReason.CLIENT_LEFT)
    copies[0].state = FAILED
    both.submit(make_request("b", [5]))
    both.abort("b", AbortReason.CLIENT_LEFT)
    copies[0].state = SERVES
    both.submit(make_request("c", range(1000, 1050)))
    assert copies[0].requests[-1].id == "c"
    both.submit(make_request("d", range(100)))
    assert copies[1].requests[-1].id == "d"


def test_prompts_of_one_submission_are_spread_and_share_a_stream() -> None:
    both, copies = make_set(4)
    prompts = [make_request(str(i), range(i * 100, i * 100 + 50)) for i in range(8)]
    stream = both.submit(*prompts)
    assert counts(copies) == [2, 2, 2, 2]
    assert len(set(both.loads)) == 1
    for number in (3, 0):
        copies[number].finish(copies[number].requests[0].id)
    assert [output.id for output in take_all(stream)] == ["3", "0"]


def test_a_long_prompt_of_a_submission_counts_more_than_short_ones() -> None:
    both, copies = make_set()
    sizes = (1000, 10, 10, 10)
    both.submit(*(make_request(str(i), range(i * 5000, i * 5000 + n)) for i, n in enumerate(sizes)))
    assert counts(copies) == [1, 3]


def test_further_answers_to_a_prompt_go_to_the_copy_of_the_first() -> None:
    both, copies = make_set()
    choice = replace(make_request("b", range(50)), same_prompt_as="a")
    stream = both.submit(make_request("a", range(50)), choice)
    assert counts(copies) == [2, 0]
    assert both.loads == [50 + 4 + 4, 0]
    copies[0].finish("b")
    copies[0].finish("a")
    assert [output.id for output in take_all(stream)] == ["b", "a"]
    assert both.loads == [0, 0]


def test_a_copys_load_falls_with_its_outputs() -> None:
    both, copies = make_set()
    stream = both.submit(make_request("a", range(50), max_new_tokens=10))
    for tokens in (1,), (1, 2):
        copies[0].streams["a"].put(RequestOutput("a", tokens))
    assert stream.ready
    assert both.loads == [60, 0]
    stream.next(0)
    assert both.loads == [9, 0]
    stream.next(0)
    assert both.loads == [7, 0]


@pytest.mark.parametrize("health", [FAILED, LOADS, STUCK, Health(EngineState.DRAINING, "", 0.0)])
def test_only_copies_that_serve_get_requests(health: Health) -> None:
    both, copies = make_set(3)
    copies[1].state = health
    for number in range(20):
        both.submit(make_request(str(number), [number]))
    assert counts(copies) == [10, 0, 10]
    assert both.health().ready
    assert [copy.ready for copy in both.health().copies] == [True, False, True]


def test_the_death_of_a_copy_is_its_own_clients() -> None:
    both, copies = make_set()
    lost, kept = both.submit(make_request("a")), both.submit(make_request("b"))
    copies[0].state = FAILED
    copies[0].fail_all()
    assert [output.error_kind for output in take_all(lost)] == [EngineDied.kind]
    copies[1].finish("b")
    assert [output.error_kind for output in take_all(kept)] == [""]


def test_without_any_copy_the_engine_says_what_is_wrong() -> None:
    both, copies = make_set()
    for copy in copies:
        copy.state = FAILED
    assert [output.error_kind for output in take_all(both.submit(make_request("a")))] == [EngineDied.kind]
    assert both.loads == [0, 0]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((FAILED, LOADS), EngineState.STARTING),
        ((FAILED, FAILED), EngineState.FAILED),
        ((Health(EngineState.STOPPED, "", 0.0), Health(EngineState.DRAINING, "", 0.0)), EngineState.DRAINING),
        ((LOADS, STUCK), EngineState.READY),
    ],
)
def test_the_state_of_the_set(states: tuple[Health, Health], expected: EngineState) -> None:
    both, copies = make_set()
    for copy, state in zip(copies, states, strict=True):
        copy.state = state
    assert both.health().state is expected
    assert not both.health().ready


def test_an_abort_goes_to_the_copy_of_the_request_once() -> None:
    both, copies = make_set()
    both.submit(make_request("a"))
    both.abort("a", AbortReason.CLIENT_LEFT)
    both.abort("a", AbortReason.CLIENT_LEFT)
    both.abort("never was", AbortReason.CLIENT_LEFT)
    assert [copy.aborted for copy in copies] == [["a"], []]


def test_stats_are_summed_and_kept_by_copy() -> None:
    both, copies = make_set(3)
    for number in range(4):
        both.submit(make_request(str(number)))
    copies[2].state = LOADS
    stats = both.stats(1)
    assert stats is not None
    assert stats.gauges == {
        "lmi_requests_running": 3.0,
        "lmi_kv_use": pytest.approx(0.15),
        "lmi_copies": 3.0,
        "lmi_copies_serving": 2.0,
    }
    assert stats.counters == {"lmi_steps_total": 3.0}
    (histogram,) = stats.histograms
    assert (histogram.counts, histogram.sum) == ((3, 2), 1.0)
    assert stats.info.kv_capacity_tokens == 200
    assert {number: each.counters["lmi_steps_total"] for number, each in stats.copies.items()} == {
        "1": 2,
        "2": 1,
    }
    for copy in copies:
        copy.state = FAILED
    assert both.stats(1) is None


def test_settings_change_in_all_copies() -> None:
    both, copies = make_set(3)
    answer = both.configure_scheduler({"max_waiting": 7}, 1)
    assert answer is not None
    assert answer.settings is not None
    assert answer.settings.max_waiting == 7
    assert [copy.settings for copy in copies] == [answer.settings] * 3
    assert both.configure_scheduler({}, 1) == answer


def test_settings_that_one_copy_refuses_change_in_none() -> None:
    both, copies = make_set(3)
    before = copies[0].settings
    copies[1].refused = {"max_waiting": "too large"}
    answer = both.configure_scheduler({"max_waiting": 7, "max_num_seqs": 4}, 1)
    assert answer is not None
    assert answer.refused == {"max_waiting": "too large"}
    assert answer.settings == before
    assert [copy.settings for copy in copies] == [before] * 3


def test_settings_get_their_old_values_where_a_copy_does_not_reply() -> None:
    both, copies = make_set()
    before = copies[0].settings
    copies[1].silent_for = {"max_waiting"}
    assert both.configure_scheduler({"max_waiting": 7}, 1) is None
    assert [copy.settings for copy in copies] == [before] * 2


def test_settings_do_not_change_while_a_copy_does_not_serve() -> None:
    both, copies = make_set()
    copies[0].state = LOADS
    with pytest.raises(Unavailable, match="copy 1 of 2 is not ready"):
        both.configure_scheduler({"max_waiting": 7}, 1)
    assert both.configure_scheduler({}, 1) is not None
    assert copies[1].settings == copies[0].settings


def test_changes_of_two_web_processes_take_turns(tmp_path: Path) -> None:
    copies = [FakeCopy() for _ in range(2)]
    sets = [ReplicaSet(copies, KnownPrefixes(2), tmp_path / "lock") for _ in range(2)]
    arrived = 0

    def first_change_last() -> None:
        """Copy 2 makes the change that arrives first only after others have had their chance."""
        nonlocal arrived
        arrived += 1
        if arrived == 1:
            gevent.sleep(0.05)

    copies[1].before_change = first_change_last
    changes = [gevent.spawn(one.configure_scheduler, {"max_waiting": n}, 60) for n, one in enumerate(sets)]
    gevent.joinall(changes, raise_error=True)
    assert copies[0].settings == copies[1].settings
    assert [change.value.settings.max_waiting for change in changes] == [0, 1]


def test_a_change_that_waits_too_long_for_another_is_refused(tmp_path: Path) -> None:
    copies = [FakeCopy() for _ in range(2)]
    both = ReplicaSet(copies, KnownPrefixes(2), tmp_path / "lock")
    with (
        settings_lock(tmp_path / "lock", 0, gevent.sleep),
        pytest.raises(Unavailable, match="another change of the settings is in progress"),
    ):
        both.configure_scheduler({"max_waiting": 7}, 0)
    assert both.configure_scheduler({"max_waiting": 7}, 60) is not None


def test_close_closes_all() -> None:
    both, copies = make_set()
    both.close()
    assert all(copy.closed for copy in copies)
