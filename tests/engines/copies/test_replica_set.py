"""`ReplicaSet`: the distribution of requests over copies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import RequestStream
from engines.copies.known_prefixes import KnownPrefixes
from engines.copies.replica_set import ReplicaSet
from engines.copies.settings_lock import settings_lock
from engines.core import AbortReason, RequestOutput, SchedulerSettings
from engines.errors import EngineDied, Unavailable
from engines.health import EngineState, Health
from tests.engines.copies.fakes import SERVES, FakeCopy
from tests.engines.mpi.fakes import make_request

FAILED = Health(EngineState.FAILED, "killed", 0.0)
LOADING = Health(EngineState.STARTING, "", 0.0)
STUCK = Health(EngineState.READY, "", 1e9)


def _loads(replicas: ReplicaSet) -> list[int]:
    """Tokens that each copy still has to compute."""
    return [copy.load for copy in replicas._replicas]


def make_set(count: int = 2, block_tokens: int = 4, places: int = 32) -> tuple[ReplicaSet, list[FakeCopy]]:
    copies = [FakeCopy() for _ in range(count)]
    return ReplicaSet(copies, KnownPrefixes(count, block_tokens), places, Path("/dev/null")), copies


def submit_and_leave(replicas: ReplicaSet, name: str, prompt: Sequence[int]) -> None:
    """Submit a request whose client leaves at once."""
    replicas.submit(make_request(name, prompt))
    replicas.abort(name, AbortReason.CLIENT_LEFT)


def counts(copies: Sequence[FakeCopy]) -> list[int]:
    return [len(copy.requests) for copy in copies]


def read_all(stream: RequestStream) -> list[RequestOutput]:
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


@given(count=st.integers(2, 4), places=st.integers(1, 8), events=EVENTS)
def test_loads_follow_open_requests_and_the_least_loaded_copy_with_a_free_place_is_selected(
    count: int, places: int, events: list[tuple[str, int, int]]
) -> None:
    replicas, copies = make_set(count, places=places)
    streams: dict[str, RequestStream] = {}
    for number, (event, pick, size) in enumerate(events):
        copy = copies[pick % count]
        open_ids = sorted(streams)
        if event == "submit":
            request = make_request(str(number), [(pick + i) % 7 for i in range(size)], size)
            before = _loads(replicas)
            healthy = [i for i, c in enumerate(copies) if c.state is SERVES]
            with_places = [i for i in healthy if len(copies[i].streams) < places]
            streams[request.id] = replicas.submit(request)
            selected = next(i for i, c in enumerate(copies) if c.requests[-1:] == [request])
            if candidates := with_places or healthy:
                assert selected in candidates
                # A known prefix outweighs at most the length of the prompt.
                assert before[selected] <= min(before[i] for i in candidates) + size
        elif event == "fail":
            copy.state = FAILED
            copy.fail_all()
        elif event == "recover":
            copy.state = SERVES
        elif open_ids:
            request_id = open_ids[pick % len(open_ids)]
            owner = next(c for c in copies if any(r.id == request_id for r in c.requests))
            if event == "abort":
                replicas.abort(request_id, AbortReason.CLIENT_LEFT)
                del streams[request_id]
            elif request_id in owner.streams and event == "finish":
                owner.finish(request_id)
            elif request_id in owner.streams:
                owner.streams[request_id].put(RequestOutput(request_id, (1, 2)))
        for request_id, stream in list(streams.items()):
            if any(output.finished for output in read_all(stream)):
                del streams[request_id]
        assert all(load >= 0 for load in _loads(replicas))
        assert bool(sum(_loads(replicas))) == bool(streams)
    for request_id in streams:
        replicas.abort(request_id, AbortReason.CLIENT_LEFT)
    assert _loads(replicas) == [0] * count


@pytest.mark.parametrize("num_copies", [2, 3, 5])
@pytest.mark.parametrize("open_requests", [0, 10])
def test_requests_are_spread_evenly(num_copies: int, open_requests: int) -> None:
    """Prompts have random lengths and no common prefix."""
    replicas, copies = make_set(num_copies)
    rng = random.Random(1)
    running: list[str] = []
    for number in range(1000):
        prompt = [rng.randrange(10_000) for _ in range(rng.randrange(1, 200))]
        replicas.submit(make_request(str(number), prompt, rng.randrange(1, 400)))
        running.append(str(number))
        while len(running) > open_requests:
            replicas.abort(running.pop(rng.randrange(len(running))), AbortReason.STOP_SEQUENCE)
    for count in counts(copies):
        assert abs(count / 1000 - 1 / num_copies) < 0.05


def test_a_known_prefix_does_not_outweigh_a_larger_load() -> None:
    replicas, copies = make_set()
    replicas.submit(make_request("a", range(100), max_new_tokens=30))
    # Copy 0 knows the 100 tokens of this prompt, but has a load of 130.
    replicas.submit(make_request("b", range(100), max_new_tokens=30))
    assert counts(copies) == [1, 1]
    # Now both copies know the prompt.
    replicas.abort("b", AbortReason.CLIENT_LEFT)
    replicas.submit(make_request("c", range(100), max_new_tokens=30))
    assert copies[1].requests[-1].id == "c"


def test_a_known_prefix_does_not_outweigh_a_free_place() -> None:
    replicas, copies = make_set(places=3)
    stream = replicas.submit(make_request("0", range(1000)))
    copies[0].streams["0"].put(RequestOutput("0", (1,)))
    stream.next(0)
    for number in range(1, 6):
        replicas.submit(make_request(str(number), [*range(1000), number]))
    assert [[request.id for request in copy.requests] for copy in copies] == [
        ["0", "1", "2"],
        ["3", "4", "5"],
    ]
    # A place is free again, once a request of this copy has ended.
    copies[0].finish("0")
    stream.next(0)
    replicas.submit(make_request("6", range(5000, 8000)))
    assert copies[0].requests[-1].id == "6"
    # Without free places, the known prefix decides again.
    replicas.submit(make_request("7", range(5000, 8000)))
    assert copies[0].requests[-1].id == "7"


def test_without_a_prefix_cache_prompts_are_ignored() -> None:
    copies = [FakeCopy(), FakeCopy()]
    replicas = ReplicaSet(copies, KnownPrefixes(2, max_blocks=0), 32, Path("/dev/null"))
    for number in range(6):
        submit_and_leave(replicas, str(number), range(100))
    assert counts(copies) == [3, 3]


def test_a_restarted_copy_knows_no_prefix() -> None:
    """No request needs to arrive while it is down."""
    replicas, copies = make_set()
    submit_and_leave(replicas, "a", range(100))
    copies[0].num_restarts += 1
    replicas.submit(make_request("b", range(100)))
    assert copies[1].requests[-1].id == "b"


def test_prompts_of_one_submission_are_spread_and_share_a_stream() -> None:
    replicas, copies = make_set(4)
    prompts = [make_request(str(i), range(i * 100, i * 100 + 50)) for i in range(8)]
    stream = replicas.submit(*prompts)
    assert counts(copies) == [2, 2, 2, 2]
    assert len(set(_loads(replicas))) == 1
    for number in (3, 0):
        copies[number].finish(copies[number].requests[0].id)
    assert [output.id for output in read_all(stream)] == ["3", "0"]


def test_long_prompts_of_a_submission_count_more_than_short_ones() -> None:
    replicas, copies = make_set()
    sizes = (1000, 10, 10, 10)
    replicas.submit(*(make_request(str(i), range(i * 5000, i * 5000 + n)) for i, n in enumerate(sizes)))
    assert counts(copies) == [1, 3]


def test_all_choices_of_a_prompt_go_to_the_same_copy() -> None:
    replicas, copies = make_set()
    choice = replace(make_request("b", range(50)), same_prompt_as="a")
    stream = replicas.submit(make_request("a", range(50)), choice)
    assert counts(copies) == [2, 0]
    assert _loads(replicas) == [50 + 4 + 4, 0]
    copies[0].finish("b")
    copies[0].finish("a")
    assert [output.id for output in read_all(stream)] == ["b", "a"]
    assert _loads(replicas) == [0, 0]


def test_load_decreases_with_each_output() -> None:
    replicas, copies = make_set()
    stream = replicas.submit(make_request("a", range(50), max_new_tokens=10))
    for tokens in (1,), (1, 2):
        copies[0].streams["a"].put(RequestOutput("a", tokens))
    assert _loads(replicas) == [60, 0]
    stream.next(0)
    assert _loads(replicas) == [9, 0]
    stream.next(0)
    assert _loads(replicas) == [7, 0]


def test_an_output_limit_that_is_rarely_reached_is_not_counted_in_full() -> None:
    replicas, _ = make_set()
    replicas.submit(make_request("a", range(50), max_new_tokens=8000))
    assert _loads(replicas) == [50 + 256, 0]


@pytest.mark.parametrize("health", [FAILED, LOADING, STUCK, Health(EngineState.DRAINING, "", 0.0)])
def test_only_ready_copies_get_requests(health: Health) -> None:
    replicas, copies = make_set(3)
    copies[1].state = health
    for number in range(20):
        replicas.submit(make_request(str(number), [number]))
    assert counts(copies) == [10, 0, 10]
    assert replicas.health().ready
    assert [copy.ready for copy in replicas.health().copies] == [True, False, True]


def test_requests_fail_when_all_copies_have_failed() -> None:
    replicas, copies = make_set()
    for copy in copies:
        copy.state = FAILED
    assert [output.error_kind for output in read_all(replicas.submit(make_request("a")))] == [EngineDied.kind]
    assert _loads(replicas) == [0, 0]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((FAILED, LOADING), EngineState.STARTING),
        ((FAILED, FAILED), EngineState.FAILED),
        ((Health(EngineState.STOPPED, "", 0.0), Health(EngineState.DRAINING, "", 0.0)), EngineState.DRAINING),
        ((LOADING, STUCK), EngineState.READY),
    ],
)
def test_state_of_the_replica_set(states: tuple[Health, Health], expected: EngineState) -> None:
    replicas, copies = make_set()
    for copy, state in zip(copies, states, strict=True):
        copy.state = state
    assert replicas.health().state is expected
    assert not replicas.health().ready


def test_an_abort_is_sent_once_to_the_copy_of_the_request() -> None:
    replicas, copies = make_set()
    replicas.submit(make_request("a"))
    replicas.abort("a", AbortReason.CLIENT_LEFT)
    replicas.abort("a", AbortReason.CLIENT_LEFT)
    replicas.abort("unknown", AbortReason.CLIENT_LEFT)
    assert [copy.aborted for copy in copies] == [["a"], []]


def test_stats_are_reported_for_each_copy_and_not_summed() -> None:
    replicas, copies = make_set(3)
    for number in range(4):
        replicas.submit(make_request(str(number)))
    copies[2].state = LOADING
    stats = replicas.stats(1)
    assert stats is not None
    assert stats.gauges == {"lmi_copies": 3.0, "lmi_copies_serving": 2.0}
    assert (stats.counters, stats.histograms) == ({}, ())
    assert stats.copies == {"1": copies[0].stats(1), "2": copies[1].stats(1)}
    for copy in copies:
        copy.state = FAILED
    assert replicas.stats(1) is None


def test_a_settings_change_applies_to_all_copies() -> None:
    replicas, copies = make_set(3)
    answer = replicas.configure_scheduler({"max_waiting": 7}, 1)
    assert answer is not None
    assert answer.settings is not None
    assert answer.settings.max_waiting == 7
    assert [copy.settings for copy in copies] == [answer.settings] * 3
    assert replicas.configure_scheduler({}, 1) == answer


def test_settings_refused_by_one_copy_change_in_none() -> None:
    replicas, copies = make_set(3)
    before = copies[0].settings
    copies[1].refused = {"max_waiting": "too large"}
    answer = replicas.configure_scheduler({"max_waiting": 7, "max_num_seqs": 4}, 1)
    assert answer is not None
    assert answer.refused == {"max_waiting": "too large"}
    assert answer.settings == before
    assert [copy.settings for copy in copies] == [before] * 3


def test_a_refused_settings_change_leaves_each_copy_its_own_settings() -> None:
    """A copy that was just restarted may still have the settings of its start."""
    replicas, copies = make_set(3)
    for number, copy in enumerate(copies):
        copy.settings = SchedulerSettings(32, 256, 256, 10 * number)
    before = [copy.settings for copy in copies]
    num_changes = [0, 0, 0]

    def count_change(number: int) -> None:
        num_changes[number] += 1

    for number, copy in enumerate(copies):
        copy.before_change = partial(count_change, number)
    copies[2].refused = {"max_waiting": "too large"}
    answer = replicas.configure_scheduler({"max_waiting": 7}, 1)
    assert answer is not None
    assert answer.refused == {"max_waiting": "too large"}
    assert [copy.settings for copy in copies] == before
    assert num_changes == [2, 2, 1], "a copy that refused the change needs no roll-back"


def test_a_settings_change_is_rolled_back_when_a_copy_does_not_reply() -> None:
    replicas, copies = make_set()
    before = copies[0].settings
    copies[1].silent_for = {"max_waiting"}
    assert replicas.configure_scheduler({"max_waiting": 7}, 1) is None
    assert [copy.settings for copy in copies] == [before] * 2


def test_a_settings_change_is_refused_while_a_copy_is_not_ready() -> None:
    replicas, copies = make_set()
    copies[0].state = LOADING
    with pytest.raises(Unavailable, match="copy 1 of 2 is not ready; settings can only be changed in all"):
        replicas.configure_scheduler({"max_waiting": 7}, 1)
    assert replicas.configure_scheduler({}, 1) is not None
    assert copies[1].settings == copies[0].settings


def test_a_refused_settings_change_names_all_copies_that_are_not_ready() -> None:
    replicas, copies = make_set(4)
    for index, message in (
        (0, "^copy 1 of 4 is not ready; "),
        (2, "^copies 1 and 3 of 4 are not ready; "),
        (3, "^copies 1, 3 and 4 of 4 are not ready; "),
    ):
        copies[index].state = LOADING
        with pytest.raises(Unavailable, match=message):
            replicas.configure_scheduler({"max_waiting": 7}, 1)


def test_settings_changes_of_two_web_processes_do_not_interleave(tmp_path: Path) -> None:
    copies = [FakeCopy() for _ in range(2)]
    sets = [ReplicaSet(copies, KnownPrefixes(2), 32, tmp_path / "lock") for _ in range(2)]
    arrived = 0

    def delay_first_change() -> None:
        """Give the second change time to overtake the first one."""
        nonlocal arrived
        arrived += 1
        if arrived == 1:
            gevent.sleep(0.05)

    copies[1].before_change = delay_first_change
    changes = [gevent.spawn(each.configure_scheduler, {"max_waiting": n}, 60) for n, each in enumerate(sets)]
    gevent.joinall(changes, raise_error=True)
    assert copies[0].settings == copies[1].settings
    assert [change.value.settings.max_waiting for change in changes] == [0, 1]


def test_a_settings_change_that_times_out_waiting_for_another_is_refused(tmp_path: Path) -> None:
    copies = [FakeCopy() for _ in range(2)]
    replicas = ReplicaSet(copies, KnownPrefixes(2), 32, tmp_path / "lock")
    with (
        settings_lock(tmp_path / "lock", 0, gevent.sleep),
        pytest.raises(Unavailable, match="another change of the settings is in progress"),
    ):
        replicas.configure_scheduler({"max_waiting": 7}, 0)
    assert replicas.configure_scheduler({"max_waiting": 7}, 60) is not None
