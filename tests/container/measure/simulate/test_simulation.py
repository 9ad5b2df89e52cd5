"""Simulations in virtual time: exact, reproducible, with the scheduling rules of the engines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from container.measure.bench.arrivals import OpenLoop, Users
from container.measure.bench.lengths import Exponential, Uniform
from container.measure.bench.prefixes import SharedPrefixes
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import Workload
from container.measure.simulate.clients import ARRIVAL_SECONDS
from container.measure.simulate.prompts import virtual_requests
from container.measure.simulate.simulation import simulate
from tests.container.measure.simulate.made_up import Times, dynamic_server, rolling_server, scenario


def test_a_request_takes_as_long_as_its_steps(llama: Path) -> None:
    """A prompt of 100 tokens takes two chunks of at most 64, and 5 output tokens take four more steps."""
    simulation = simulate(rolling_server(llama), Times(0.25), scenario(1, 100, 5))
    (outcome,) = simulation.run.outcomes
    assert outcome.ttft == ARRIVAL_SECONDS + 0.5
    assert outcome.latency == simulation.run.wall_seconds == ARRIVAL_SECONDS + 1.5
    assert simulation.metrics.tpot.p50 == pytest.approx(0.25)
    assert simulation.stats.counters["lmi_steps_total"] == 6


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 1.25 * 40), ("cuda", 1.0 * 40 + 0.25)])
def test_a_gpu_overlaps_host_time_with_the_next_step(llama: Path, device: str, seconds: float) -> None:
    simulation = simulate(rolling_server(llama, device=device), Times(1.0, 0.25), scenario(1, 8, 40))
    assert simulation.run.wall_seconds == pytest.approx(ARRIVAL_SECONDS + seconds)


def test_the_same_arguments_give_the_same_result(llama: Path) -> None:
    load = scenario(40, Uniform(8, 200), Exponential(20, 80), OpenLoop(30.0))
    first, again = (simulate(rolling_server(llama), Times(), load, seed=3) for _ in range(2))
    assert first.run == again.run
    assert first.stats.counters == again.stats.counters
    assert simulate(rolling_server(llama), Times(), load, seed=4).run != first.run


def test_open_loop_requests_arrive_at_their_own_times(llama: Path) -> None:
    simulation = simulate(rolling_server(llama), Times(), scenario(20, 8, 2, OpenLoop(1.0, math.inf)))
    assert simulation.run.wall_seconds == pytest.approx(
        simulation.run.outcomes[-1].scheduled + ARRIVAL_SECONDS + 0.02
    )
    assert all(
        outcome.latency == pytest.approx(ARRIVAL_SECONDS + 0.02) for outcome in simulation.run.outcomes
    )


def test_a_user_sends_the_next_request_after_the_last_response(llama: Path) -> None:
    simulation = simulate(rolling_server(llama), Times(0.5), scenario(4, 8, 2, Users(2)))
    answered = ARRIVAL_SECONDS + 1.0
    assert [outcome.scheduled for outcome in simulation.run.outcomes] == [0.0, 0.0, answered, answered]


def test_a_users_next_request_misses_the_step_that_follows(llama: Path) -> None:
    """The engine does not wait for new requests while other sequences run."""
    simulation = simulate(rolling_server(llama), Times(1.0), scenario(40, 8, Uniform(2, 20), Users(4)))
    first, later = simulation.run.outcomes[:4], simulation.run.outcomes[4:-4]
    assert {round(one.ttft, 6) for one in first} == {1 + ARRIVAL_SECONDS}
    assert {round(one.ttft, 6) for one in later} == {2.0}


def test_only_prompts_with_a_common_prefix_hit_the_prefix_cache(llama: Path) -> None:
    shared = Workload(Uniform(140, 160), Uniform(4, 8), 30, SharedPrefixes(2, 128))
    simulation = simulate(rolling_server(llama), Times(), Scenario("", shared, Users(1)))
    assert simulation.stats.counters["lmi_prefix_hit_tokens_total"] == 28 * 128
    simulation = simulate(rolling_server(llama), Times(), scenario(30, 150, 8, Users(1)))
    assert simulation.stats.counters["lmi_prefix_hit_tokens_total"] == 0


def test_virtual_prompts_differ_in_their_first_tokens() -> None:
    requests, prompt = virtual_requests(scenario(500, 8).workload, 0, vocab_size=64)
    prompts = [prompt(request) for request in requests]
    assert {len(ids) for ids in prompts} == {8}
    assert len({ids[:2] for ids in prompts}) == 500
    assert all(0 <= token < 64 for ids in prompts for token in ids)


def test_a_request_that_times_out_at_the_client_is_aborted(llama: Path) -> None:
    server = rolling_server(llama, max_num_seqs=1)
    simulation = simulate(server, Times(0.25), scenario(2, 8, 20), timeout=6.0)
    first, second = simulation.run.outcomes
    assert (first.error, first.latency) == ("", 5.0 + ARRIVAL_SECONDS)
    assert (second.error, second.timed_out) == ("no complete response within 6 s", True)
    assert second.ended == 6.0
    assert simulation.metrics.num_timeouts == simulation.metrics.num_errors == 1
    assert simulation.stats.counters["lmi_requests_aborted_total"] == 1


def test_a_request_whose_last_step_ends_after_the_time_limit_has_failed(llama: Path) -> None:
    simulation = simulate(rolling_server(llama), Times(3.0), scenario(1, 8, 1), timeout=2.0)
    (outcome,) = simulation.run.outcomes
    assert (outcome.timed_out, outcome.ended) == (True, 2.0)


def test_a_request_that_times_out_at_the_server_gets_an_error(llama: Path) -> None:
    simulation = simulate(rolling_server(llama), Times(10.0), scenario(1, 8, 40))
    (outcome,) = simulation.run.outcomes
    assert "the request timed out" in outcome.error
    assert not outcome.timed_out


def test_a_full_queue_rejects_requests(llama: Path) -> None:
    server = rolling_server(llama, max_num_seqs=2, max_waiting=3)
    simulation = simulate(server, Times(), scenario(8, 8, 4))
    assert simulation.metrics.num_errors == 3
    assert "queue is full" in simulation.metrics.errors[0].text


def test_a_dynamic_batch_starts_after_its_delay_and_ends_with_its_longest_sequence(llama: Path) -> None:
    """Three requests, batches of 2: the third request waits for the first batch, then for the batch delay."""
    load = scenario(3, Uniform(8, 16), Uniform(2, 6))
    simulation = simulate(dynamic_server(llama, 2), Times(0.5), load)
    longest = max(outcome.output_tokens for outcome in simulation.run.outcomes[:2])
    first, second, third = simulation.run.outcomes
    assert first.ttft == second.ttft == ARRIVAL_SECONDS + 0.5
    latencies = [ARRIVAL_SECONDS + 0.5 * one.output_tokens for one in (first, second)]
    assert [one.latency for one in (first, second)] == latencies
    assert third.token_times[0] == pytest.approx(ARRIVAL_SECONDS + 0.5 * longest + 0.1 + 0.5)
    counters = simulation.stats.counters
    lengths = [request.prompt_tokens for request in simulation.requests]
    assert counters["lmi_padding_tokens_total"] == abs(lengths[0] - lengths[1])
    assert counters["lmi_ended_row_tokens_total"] == abs(first.output_tokens - second.output_tokens)


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 1.25 * 40), ("cuda", 1.0 * 40)])
def test_a_gpu_overlaps_host_time_with_the_same_step_of_a_dynamic_batch(
    llama: Path, device: str, seconds: float
) -> None:
    simulation = simulate(dynamic_server(llama, 1, 0.0, device), Times(1.0, 0.25), scenario(1, 8, 40))
    assert simulation.run.wall_seconds == pytest.approx(ARRIVAL_SECONDS + seconds)


def test_a_dynamic_batch_is_stopped_at_its_time_limit(llama: Path) -> None:
    simulation = simulate(dynamic_server(llama, 4), Times(100.0), scenario(4, 8, 4), timeout=1000.0)
    assert {outcome.ended for outcome in simulation.run.outcomes} == {240.0 + ARRIVAL_SECONDS}
    assert all("option.predict_timeout" in outcome.error for outcome in simulation.run.outcomes)


def test_requests_of_disconnected_clients_are_computed_until_their_batch_ends(llama: Path) -> None:
    simulation = simulate(dynamic_server(llama, 1, 0.0), Times(1.0), scenario(2, 8, 10), timeout=5.5)
    assert [outcome.timed_out for outcome in simulation.run.outcomes] == [True, True]
    assert simulation.stats.counters["lmi_steps_total"] <= 7
