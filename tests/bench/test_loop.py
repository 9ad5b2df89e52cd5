"""The closed loop of the runners."""

from __future__ import annotations

from tests.bench.runners.loop import ClosedLoop, Request, outcome


def make_loop(count: int, num_users: int) -> ClosedLoop:
    return ClosedLoop([Request(index, f"p{index}", 2) for index in range(count)], num_users)


def test_each_user_has_one_request_in_flight_and_asks_again_when_it_is_answered() -> None:
    loop = make_loop(5, 2)
    first = loop.due()
    assert [(request.index, request.user) for request in first] == [(0, 0), (1, 1)]
    assert loop.due() == []
    loop.answered(first[1], 7.0)
    (third,) = loop.due()
    assert (third.index, third.user, third.scheduled) == (3, 1, 7.0)
    loop.answered(first[0], 8.0)
    (second,) = loop.due()
    assert (second.index, second.scheduled) == (2, 8.0)
    loop.answered(second, 9.0)
    loop.answered(third, 9.5)
    assert [(request.index, request.scheduled) for request in loop.due()] == [(4, 9.0)]
    assert loop.due() == []


def test_more_users_than_requests() -> None:
    assert [request.index for request in make_loop(2, 4).due()] == [0, 1]


def test_an_outcome_has_the_fields_of_the_load_client() -> None:
    from container.measure.bench.load import RequestOutcome

    request = Request(3, "p", 2, token_ids=[5, 6], token_times=[0.5, 0.6], ended=0.7)
    made = RequestOutcome(**outcome(request))
    assert (made.index, made.output_tokens, made.ended, made.error) == (3, 2, 0.7, "")
