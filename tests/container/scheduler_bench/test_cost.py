"""`lmi scheduler-cost`: what is measured is what is said; how fast this machine is, is no test."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from container.measure.scheduler import scheduler_cost_command
from container.measure.scheduler.cost import (
    Bench,
    Micros,
    StepCost,
    growth_with_running,
    growth_with_waiting,
    measure,
)
from container.measure.scheduler.scheduler_cost_command import scheduler_cost
from engines.mpi.scheduler.policies import POLICIES
from tests.support.paths import REPO_ROOT, child_environment


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("blocked_by", ["places", "blocks"])
def test_every_step_computes_one_token_of_all_that_run(policy: str, blocked_by: str) -> None:
    """`measure` raises where it does not; each clock reading is a microsecond after the one before."""
    ticks = itertools.count()
    cost = measure(Bench(20, policy, blocked_by), 4, 10, lambda: next(ticks) * 1e-6)
    assert (cost.num_running, cost.num_waiting) == (4, 10)
    assert cost.total.median == pytest.approx(2.0)
    for micros in (cost.schedule, cost.update, cost.encode):
        assert (micros.p10, micros.median, micros.p90) == pytest.approx((1.0, 1.0, 1.0))


def _cost(running: int, waiting: int, total: float) -> StepCost:
    micros = Micros(total, total, total)
    return StepCost(running, waiting, micros, micros, micros, micros)


def test_growth_is_relative_to_the_fewest() -> None:
    costs = [_cost(32, 0, 10.0), _cost(32, 1000, 11.0), _cost(256, 0, 80.0), _cost(256, 1000, 120.0)]
    assert growth_with_running(costs) == {0: 1.0, 1000: pytest.approx(120 / 11 / 8)}
    assert growth_with_waiting(costs) == {32: pytest.approx(1.1), 256: 1.5}


@pytest.mark.parametrize(
    ("micros", "code", "said"),
    [
        (200.0, 0, "within the aim"),
        (400.0, 0, "beyond the aim, within the limit"),
        (600.0, 1, "BEYOND THE LIMIT"),
    ],
)
def test_the_limit_decides_about_the_exit_code(
    micros: float, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_up(bench: Bench, running: int, waiting: int) -> StepCost:
        return _cost(running, waiting, micros * running / 256)

    monkeypatch.setattr(scheduler_cost_command, "measure", made_up)
    done = CliRunner().invoke(scheduler_cost, ["--json", "-"])
    assert done.exit_code == code
    assert said in done.stderr
    values = json.loads(done.stdout)
    assert len(values["costs_us"]) == 12
    assert values["within_limit"] is (code == 0)
    assert values["growth_with_running"]["1000"] == pytest.approx(1.0)


def test_it_needs_no_torch() -> None:
    program = (
        "import sys\n"
        "from container.measure.scheduler.cost import Bench, measure\n"
        "import container.measure.scheduler.kv_waste_command, container.measure.scheduler.scheduler_cost_command\n"
        "measure(Bench(10, 'fair', 'places'), 2, 2)\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO_ROOT,
        env=child_environment(),
        timeout=60,
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
