"""A whole comparison over HTTP with arms that are scripted servers: what is asked, measured and ended."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from pathlib import Path

import pytest

from container.measure.bench.errors import BenchError
from container.measure.compare.configurations import Arm
from container.measure.compare.plan import Plan, Scenario
from container.measure.compare.results import Comparison, RoundResult
from container.measure.compare.run import Runner, Workloads
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import ArmFailed
from container.measure.compare.summary import equality
from container.run.stop_signals import StopRequested, StopSignals
from tests.container.measure.compare.fake_server import Behaviour, FakeArm, FakeArms, plain_token
from tests.container.measure.compare.made_up import make_arm
from tests.lmi_server.fakes import build_model_folder

SHORT = Scenario("short", 8, 4, 3, 2)
LONG = Scenario("long", 12, 2, 2, 2)


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.doings: list[str] = []
        self.num_done = 0
        self.results: list[RoundResult] = []

    def doing(self, text: str, total: int = 0) -> None:
        self.doings.append(text)

    def request_done(self) -> None:
        self.num_done += 1

    def stay_ready(self, arm: Arm, seconds: float) -> None:
        self.doings.append(f"{arm.name} ready after {seconds}")

    def round_done(self, result: RoundResult) -> None:
        self.results.append(result)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model_folder(tmp_path_factory.mktemp("model"))


def run(fakes: FakeArms, model: Path, tmp_path: Path, plan: Plan, *names: str) -> tuple[Comparison, Notes]:
    notes = Notes()
    arms = tuple(make_arm(name) for name in names)
    runner = Runner(arms, plan, Workloads(dict.fromkeys(names, model)), fakes, tmp_path, notes)
    return runner.run(), notes


def test_arms_run_one_at_a_time_in_turn_and_all_get_the_same_prompts(model: Path, tmp_path: Path) -> None:
    fakes = FakeArms()
    made, notes = run(fakes, model, tmp_path, Plan((SHORT, LONG), 2, seed=5), "a", "b")
    assert fakes.journal == ["start a", "stop a", "start b", "stop b", "start a", "stop a"]
    order = [(result.configuration, result.round, result.scenario) for result in made.rounds]
    assert order == [
        *(("a", 1, "short"), ("a", 1, "long")),
        *(("b", 1, "short"), ("b", 1, "long"), ("b", 2, "short"), ("b", 2, "long")),
        *(("a", 2, "short"), ("a", 2, "long")),
    ]
    # Each life begins with a warm-up of both scenarios, 2 requests each; then 3 and 2 requests a round.
    first, third = [life.prompts[4:] for life in fakes.lives["a"]]
    (second,) = [life.prompts[4:] for life in fakes.lives["b"]]
    assert sorted(second) == sorted([*first, *third])
    assert len(set(second)) == 10
    warm_ups = {prompt for lives in fakes.lives.values() for life in lives for prompt in life.prompts[:4]}
    assert not warm_ups & set(second)
    assert notes.num_done == 3 * 4 + 4 * 5
    assert notes.results == list(made.rounds)
    assert [stay.rounds for stay in made.stays] == [(1,), (1, 2), (2,)]
    assert {stay.start_up_seconds for stay in made.stays} == {1.5}


def test_figures_batches_and_kv_are_those_of_the_round_alone(model: Path, tmp_path: Path) -> None:
    made, _ = run(FakeArms(), model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    for result in made.rounds:
        assert (result.figures.num_requests, result.figures.num_errors) == (3, 0)
        assert result.figures.output_tokens == 12
        assert result.batches is not None
        # 4 steps for each of the round's 3 requests; the warm-up's are not in it.
        assert (result.batches.count, result.batches.mean) == (12, 3.0)


def test_kv_use_is_looked_at_while_the_round_runs(model: Path, tmp_path: Path) -> None:
    def wait_for_a_look(arm: FakeArm, number: int) -> None:
        if number == 2:  # the round's first request: the warm-up has two
            arm.looked.clear()
            assert arm.looked.wait(20.0)

    waiting = Behaviour(before_answer=wait_for_a_look)
    fakes = FakeArms({"a": waiting, "b": dataclasses.replace(waiting, kv=False)})
    made, _ = run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    kv = made.of("a", "short")[0].kv
    assert kv is not None
    assert (kv.slots_total, kv.mean_allocated, kv.waste) == (160.0, 32.0, 0.5)
    assert made.of("b", "short")[0].kv is None


def test_tokens_are_kept_by_request_so_that_arms_can_be_compared(model: Path, tmp_path: Path) -> None:
    def off_by_one_at_the_end(prompt: str, position: int) -> int:
        return plain_token(prompt, position) + (position == 3)

    fakes = FakeArms({"b": Behaviour(token=off_by_one_at_the_end)})
    made, _ = run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b", "c")
    same = equality(made, "c", "a", "short")
    assert same is not None
    assert (same.num_requests, same.num_identical) == (3, 3)
    other = equality(made, "b", "a", "short")
    assert other is not None
    assert other.num_identical == 0
    assert other.earliest is not None
    assert other.earliest.position == 3


def test_requests_that_fail_are_counted_and_have_no_tokens(model: Path, tmp_path: Path) -> None:
    fakes = FakeArms({"b": Behaviour(refuses=lambda body: body["parameters"]["max_new_tokens"] == 4)})
    made, _ = run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    (bad,) = made.of("b", "short")
    assert bad.figures.num_errors == 3
    assert "no such thing" in bad.figures.errors[0].text
    assert bad.token_ids == ((), (), ())
    assert made.num_failed == 3


def test_answers_that_count_as_failed_are_not_compared(model: Path, tmp_path: Path) -> None:
    made, _ = run(
        FakeArms({"b": Behaviour(input_length=99)}), model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b"
    )
    (bad,) = made.of("b", "short")
    assert bad.figures.num_errors == 3
    assert bad.token_ids == ((), (), ())


def test_a_server_without_metrics_ends_the_comparison_and_is_ended(model: Path, tmp_path: Path) -> None:
    fakes = FakeArms({"a": Behaviour(metrics_text="<html>")})
    with pytest.raises(NoMetrics):
        run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    assert fakes.journal == ["start a", "kill a"]


def test_a_server_that_ends_badly_ends_the_comparison(model: Path, tmp_path: Path) -> None:
    fakes = FakeArms({"a": Behaviour(exit_code=1)})
    with pytest.raises(ArmFailed, match="a: its server ended with exit code 1"):
        run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    assert fakes.journal == ["start a", "stop a"]


def test_a_workload_that_cannot_be_made_starts_no_server(tmp_path: Path) -> None:
    fakes = FakeArms()
    with pytest.raises(BenchError):
        run(fakes, tmp_path / "nothing", tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    assert fakes.journal == []


def test_a_signal_to_stop_ends_the_server_and_the_comparison_at_once(model: Path, tmp_path: Path) -> None:
    ended_meanwhile: list[bool] = []

    def stop_us(arm: FakeArm, number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        ended_meanwhile.append(arm.over.wait(20.0))

    fakes = FakeArms({"a": Behaviour(before_answer=stop_us)})
    with StopSignals(), pytest.raises(StopRequested):
        run(fakes, model, tmp_path, Plan((SHORT,), 3, seed=0), "a", "b")
    assert fakes.journal == ["start a", "kill a"]
    assert all(ended_meanwhile)
    assert not any(thread.name.startswith("load") for thread in threading.enumerate())
