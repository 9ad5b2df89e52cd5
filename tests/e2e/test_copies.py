"""Two copies of a model in one server: load balancing, the crash of one copy, and its restart."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import current_limits, scheduler
from tests.support import processes
from tests.support.client import ClientRequest, Ending, Outcome
from tests.support.server import ADMIN_HEADERS, Server, properties_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e]

BOTH = {"serving": 2, "total": 2}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    text = properties_text(tiny_model, data_parallel_size=2, kv_cache_gb=0.01)
    with Server(tmp_path_factory.mktemp("copies"), text) as server:
        wait_for_both(server)
        yield server


def copies(server: Server) -> object:
    """Return the copies that `/ping` reports."""
    return server.client.get("/ping").json()["copies"]


def wait_for_both(server: Server) -> None:
    wait_until(lambda: copies(server) == BOTH)


def counts(server: Server) -> dict[str, float]:
    """Return the finished requests by copy number, for the copies that answer in time."""
    return {
        sample.labels["copy"]: sample.value
        for family in text_string_to_metric_families(server.client.get("/metrics").body)
        for sample in family.samples
        if sample.name == "lmi_requests_finished_total"
    }


def finished(server: Server) -> dict[str, float]:
    """Return `counts` once both copies have answered."""
    seen: list[dict[str, float]] = []

    def both_answer() -> bool:
        seen.append(counts(server))
        return {"1", "2"} <= seen[-1].keys()

    wait_until(both_answer)
    return seen[-1]


def engine_of(server: Server, copy: int) -> psutil.Process:
    [found] = processes.with_argument(server.processes(), lambda word: f"/copy{copy}/" in word)
    return found


def ask_all(server: Server, prompts: list[str], num_tokens: int, at_once: int) -> list[Outcome]:
    parameters = {"max_new_tokens": num_tokens, "ignore_eos_token": True}
    asks = [
        ClientRequest(prompt, parameters, stream=number % 2 == 0) for number, prompt in enumerate(prompts)
    ]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(server.client.outcome, asks))


def token_ids(outcomes: list[Outcome]) -> list[list[int]]:
    return [outcome.token_ids for outcome in outcomes]


def test_requests_are_balanced_and_answered_correctly(server: Server) -> None:
    before = finished(server)
    prompts = [f"{number} is the number of this prompt" for number in range(40)]
    # One at a time: with concurrent requests, a copy that gets more CPU time would serve more of them.
    alone = ask_all(server, prompts, 10, at_once=1)
    assert {outcome.ending for outcome in alone} == {Ending.COMPLETE}
    after = finished(server)
    shares = [(after[copy] - before[copy]) / len(prompts) for copy in ("1", "2")]
    assert sum(shares) == 1
    assert abs(shares[0] - 0.5) <= 0.05
    # The answers do not depend on the copy or on concurrency.
    assert token_ids(ask_all(server, prompts, 10, at_once=8)) == token_ids(alone)


def test_the_prompts_of_one_request_are_balanced_over_the_copies(server: Server) -> None:
    prompts = [f"{number} begins this one of several prompts" for number in range(6)]
    body = {"prompt": prompts, "max_tokens": 8, "temperature": 0}
    before = finished(server)
    together = server.client.post("/v1/completions", body).json()["choices"]
    after = finished(server)
    assert {copy: after[copy] - before[copy] for copy in "12"} == {"1": 3, "2": 3}
    alone = [
        server.client.post("/v1/completions", body | {"prompt": prompt}).json()["choices"][0]["text"]
        for prompt in prompts
    ]
    assert [choice["text"] for choice in together] == alone


def limit_batch(server: Server, size: int) -> None:
    assert scheduler(server.client, max_rolling_batch_size=size).status == 200


def test_scheduler_settings_change_in_both_copies(server: Server) -> None:
    limit_batch(server, 5)
    wait_for_both(server)
    listed = server.client.get("/admin/copies", headers=ADMIN_HEADERS).json()["copies"]
    assert [(copy["copy"], copy["serves"], copy["state"]) for copy in listed] == [
        (1, True, "ready"),
        (2, True, "ready"),
    ]
    assert {current_limits(server.client)["max_rolling_batch_size"] for _ in range(4)} == {5}


@pytest.mark.long
def test_a_killed_copy_loses_only_its_own_requests_and_restarts(server: Server) -> None:
    prompts = [f"{number} is what this prompt begins with" for number in range(8)]
    expected = token_ids(ask_all(server, prompts, 20, at_once=1))
    limit_batch(server, 6)
    before = finished(server)
    engine = engine_of(server, 1)
    engine.suspend()  # its requests are in flight when it is killed
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask_all, server, prompts, 20, at_once=len(prompts))
        # The other copy has less load, so at least half of the requests go to it.
        wait_until(lambda: counts(server).get("2", 0.0) - before["2"] >= 4)
        engine.send_signal(signal.SIGKILL)
        outcomes = future.result()
    lost = [outcome for outcome in outcomes if outcome.ending is Ending.ERROR]
    kept = zip(outcomes, expected, strict=True)
    assert 1 <= len(lost) <= 4, [outcome.describe() for outcome in outcomes]
    assert all("the engine process ended" in outcome.error for outcome in lost)
    assert sum(outcome.token_ids == right for outcome, right in kept) == len(prompts) - len(lost)
    wait_until(lambda: "copy 1 is serving again" in server.log())
    assert "restarting copy 1 in 1 s" in server.log()
    wait_for_both(server)  # the web process notices the restart a moment later
    assert token_ids(ask_all(server, prompts * 5, 20, at_once=8)) == expected * 5
    assert finished(server)["1"] > 0
    # The restarted copy has the settings of the other one, and they can still be changed in both.
    assert current_limits(server.client)["max_rolling_batch_size"] == 6
    limit_batch(server, 32)
