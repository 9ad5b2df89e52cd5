"""`/invocations` of one server: tokens, timeouts, clients that disconnect, and the counters in `/metrics`.

`tests/lmi_server` covers every variant, and `make verify` more prompts and tokens.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client, Ending
from tests.support.equality import compare
from tests.support.metrics import BLOCKS_FREE, RUNNING, STEPS, wait_metrics
from tests.support.oracle import FEW_PROMPTS, FEW_TOKENS, few_answers

pytestmark = [pytest.mark.e2e, pytest.mark.model]

STORY = "Once upon a time,"
LONG = {"max_new_tokens": 6000, "ignore_eos_token": True}


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_six_prompts_at_once_equal_transformers(
    ignore_eos: bool, client: Client, bundled_model: Path
) -> None:
    """Half of the responses are streamed. Without `ignore_eos`, EOS ends some of them."""
    answers = few_answers(bundled_model, *FEW_PROMPTS)
    assert any(answer.ended for answer in answers)
    if ignore_eos:
        answers = [answer.ignoring_eos() for answer in answers]
    parameters = {"max_new_tokens": FEW_TOKENS, "ignore_eos_token": ignore_eos}
    with ThreadPoolExecutor(len(answers)) as pool:
        calls = [
            pool.submit(client.stream if number % 2 else client.generate, answer.text, **parameters)
            for number, answer in enumerate(answers)
        ]
        compared = [compare(answer, call.result()) for answer, call in zip(answers, calls, strict=True)]
    assert [comparison.difference for comparison in compared] == [""] * len(FEW_PROMPTS)


def test_a_request_that_times_out_gets_an_error(client: Client) -> None:
    # A stream has status 200 only if its first token is in time, which may take longer on a busy machine.
    for seconds in (1, 20, 100):
        with ThreadPoolExecutor(2) as pool:
            calls = [
                pool.submit(call, STORY, **LONG, timeout=seconds) for call in (client.generate, client.stream)
            ]
        whole, streamed = (call.result() for call in calls)
        if streamed.status == 200:
            break
    assert whole.ending is Ending.ERROR
    assert whole.status >= 400
    assert f" {seconds} s (timeout)" in whole.error
    assert streamed.ending is Ending.ERROR
    assert streamed.status == 200
    assert len(streamed.token_ids) > 0
    assert client.generate(STORY, max_new_tokens=2).ending is Ending.COMPLETE


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_while_running_frees_the_blocks(client: Client, stream: bool) -> None:
    idle = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    assert idle.idle, idle.describe()
    with client.call("POST", "/invocations", {"inputs": STORY, "parameters": LONG, "stream": stream}):
        busy = wait_metrics(client, lambda seen: seen[RUNNING] == 1, SECONDS)
        assert busy[RUNNING] == 1
        assert busy[BLOCKS_FREE] < idle[BLOCKS_FREE]
    after = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    assert after.idle, after.describe()
    # Far fewer than the steps of the whole response.
    assert after[STEPS] - busy[STEPS] < 3000


def test_a_request_increments_the_counters(client: Client) -> None:
    before = client.metrics()
    outcome = client.generate(STORY, max_new_tokens=7, ignore_eos_token=True)
    after = client.metrics()
    assert len(outcome.token_ids) == 7
    assert after["lmi_tokens_generated_total"] - before["lmi_tokens_generated_total"] == 7
    assert after[STEPS] - before[STEPS] >= 7
    for name in ("lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"):
        assert after[f"{name}_count"] > before[f"{name}_count"]


def test_a_request_ended_by_a_stop_string_counts_as_finished(client: Client) -> None:
    parameters = {"max_new_tokens": 40, "ignore_eos_token": True}
    text = client.generate(STORY, **parameters).text
    before = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    assert len(client.generate(STORY, **parameters, stop=[text[20:26]]).text) <= 20
    after = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    for name, difference in (
        ("lmi_requests_finished_total", 1),
        ("lmi_requests_aborted_total", 0),
        ("lmi_time_per_output_token_seconds_count", 1),
    ):
        assert after[name] - before[name] == difference, name
