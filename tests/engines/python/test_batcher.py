"""When batches start, and which requests they contain."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.config import BatchConfig
from engines.core import Request, SamplingParams
from engines.errors import Overloaded
from engines.python.batcher import MAX_WAITING_BYTES, DynamicBatcher

_DELAY = 0.125


def _batcher(batch_size: int = 4, max_waiting: int = 1000, free_at: float | None = 0.0) -> DynamicBatcher:
    batcher = DynamicBatcher(BatchConfig(batch_size, _DELAY, max_waiting, 60.0))
    if free_at is not None:
        batcher.set_free(free_at)
    return batcher


def _request(name: object) -> Request:
    return Request(str(name), (1,), SamplingParams(max_new_tokens=1), 0.0)


def _ids(batch: list[Request] | None) -> list[str]:
    return [request.id for request in batch or []]


def test_a_single_request_starts_after_the_delay() -> None:
    batcher = _batcher(batch_size=32)
    batcher.add(_request("a"), 10.0)
    assert batcher.pop_batch(10.0) is None
    assert batcher.seconds_until_due(10.0) == _DELAY
    assert batcher.pop_batch(10.0 + _DELAY * 0.999) is None
    assert _ids(batcher.pop_batch(10.0 + _DELAY)) == ["a"]
    assert batcher.num_waiting == 0


def test_the_delay_starts_when_the_previous_batch_ends() -> None:
    batcher = _batcher()
    batcher.add(_request("a"), 0.0)
    assert batcher.pop_batch(_DELAY)
    batcher.add(_request("b"), 1.0)
    assert batcher.seconds_until_due(1.0 + _DELAY) is None
    assert batcher.pop_batch(1.0 + _DELAY) is None, "one batch at a time"
    batcher.set_free(5.0)
    assert batcher.pop_batch(5.0) is None
    assert batcher.seconds_until_due(5.0) == _DELAY
    assert _ids(batcher.pop_batch(5.0 + _DELAY)) == ["b"]


def test_the_bodies_of_waiting_requests_are_limited() -> None:
    batcher = _batcher(batch_size=2, free_at=None)
    size = 64 * 1024**2
    for number in range(MAX_WAITING_BYTES // size):
        batcher.add(_request(number), 0.0, num_bytes=size)
    with pytest.raises(Overloaded, match=f"one's 1 would exceed the limit of {MAX_WAITING_BYTES}"):
        batcher.add(_request("more"), 0.0, num_bytes=1)
    batcher.add(_request("without a body"), 0.0)
    assert batcher.abort("5")
    batcher.add(_request("in place of the aborted one"), 0.0, num_bytes=size)
    batcher.set_free(0.0)
    assert _ids(batcher.pop_batch(0.0)) == ["0", "1"]
    batcher.add(_request("in place of the batch"), 0.0, num_bytes=2 * size)
    with pytest.raises(Overloaded, match="requests with bodies of"):
        batcher.add(_request("more"), 0.0, num_bytes=1)


def test_a_single_request_may_wait_whatever_its_size() -> None:
    batcher = _batcher()
    batcher.add(_request("large"), 0.0, num_bytes=MAX_WAITING_BYTES + 1)
    assert batcher.num_waiting == 1


@dataclass
class _Model:
    """A reference model of the batcher."""

    waiting: dict[str, float] = field(default_factory=dict)
    free_since: float | None = 0.0
    num_free: int = 1

    def due_at(self, batch_size: int) -> float | None:
        if self.free_since is None or not self.waiting:
            return None
        if len(self.waiting) >= batch_size:
            return 0.0
        return max(next(iter(self.waiting.values())), self.free_since) + _DELAY


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "abort", "wait", "free", "busy"]),
        st.integers(0, 40),
    ),
    max_size=60,
)


@given(events=_EVENTS, batch_size=st.integers(1, 5), max_waiting=st.integers(1, 8))
def test_every_request_is_in_one_batch_and_batches_start_on_time(
    events: list[tuple[str, int]], batch_size: int, max_waiting: int
) -> None:
    batcher, model = _batcher(batch_size, max_waiting), _Model()
    now, number = 0.0, 0
    for event, amount in events:
        if event == "add":
            number += 1
            free_rows = batch_size * model.num_free if model.free_since is not None else 0
            if len(model.waiting) - free_rows >= max_waiting:
                with pytest.raises(Overloaded, match=f"{max_waiting} requests are already waiting"):
                    batcher.add(_request(number), now)
            else:
                batcher.add(_request(number), now)
                model.waiting[str(number)] = now
        elif event == "abort":
            assert batcher.abort(str(amount)) == (model.waiting.pop(str(amount), None) is not None)
        elif event == "wait":
            now += amount * _DELAY / 16  # exact in binary, so due times are hit exactly
        elif event == "free":
            model.num_free = 1 + amount % 3
            batcher.set_free(now, model.num_free)
            model.free_since = now if model.free_since is None else model.free_since
        elif event == "busy":
            batcher.set_busy()
            model.free_since = None
        due = model.due_at(batch_size)
        seconds = batcher.seconds_until_due(now)
        assert (seconds is None) == (due is None)
        assert seconds is None or due is None or seconds == max(0.0, due - now)
        batch = batcher.pop_batch(now)
        assert (batch is not None) == (due is not None and due <= now)
        if batch is not None:
            expected = list(model.waiting)[:batch_size]
            assert _ids(batch) == expected, "first come, first served"
            for name in expected:
                del model.waiting[name]
            model.free_since = None
        assert batcher.num_waiting == len(model.waiting)
