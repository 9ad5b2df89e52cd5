"""Made-up configurations, rounds and comparisons. Their figures can be computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.machine import Machine
from container.measure.bench.arrivals import Users
from container.measure.bench.figures import ErrorCount, Figures, Spread
from container.measure.bench.lengths import Fixed
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import Workload
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import Plan
from container.measure.compare.report import Provenance
from container.measure.compare.results import Comparison, RoundResult, ServerRun
from container.measure.compare.scrape import BatchSizes, KvUse
from tests.bench.stays import stays
from tests.container.explain.questions import SHAPE, make_model

MACHINE = Machine(cpu_count=2, memory_available_bytes=8 << 30)
SMALL_SHAPE = {**SHAPE, "num_hidden_layers": 2, "max_position_embeddings": 512}


def write_model(folder: Path) -> Path:
    """Make a folder that looks like a model as long as nothing loads it."""
    (make_model(folder, SMALL_SHAPE) / "tokenizer.json").write_text("{}")
    return folder


def write_properties(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "serving.properties").write_text("\n".join([*lines, ""]))
    return folder


def make_scenario(
    name: str, prompt_tokens: int, output_tokens: int, num_requests: int, num_users: int
) -> Scenario:
    return Scenario(
        name, Workload(Fixed(prompt_tokens), Fixed(output_tokens), num_requests), Users(num_users)
    )


SCENARIO = make_scenario("8 tokens in, 4 out", 8, 4, 2, 2)
TOKENS = ((1, 2, 3, 4), (5, 6, 7, 8))
PROVENANCE = Provenance(
    "lmi compare a b",
    "2030-01-02 03:04 UTC",
    "2 cores (Abacus 9), 8.0 GiB of memory free, no GPU",
    {"torch": "9.9"},
)


def make_configuration(
    name: str, *, engine: str = "MPI", model: str = "model", **values: str
) -> Configuration:
    """`values`: effective values by key, without `option.`."""
    return Configuration(
        name=name,
        path=Path("/configs") / name,
        engine=engine,
        model=model,
        model_folder=Path("/models") / model,
        tokenizer=Path("/models") / model,
        values={"engine": engine, **{f"option.{key}": value for key, value in values.items()}},
        loading_timeout=10.0,
    )


def make_figures(
    tokens_per_second: float = 100.0, latency: float = 2.0, errors: Sequence[str] = (), limited: str = ""
) -> Figures:
    spread = Spread(latency / 2, latency / 2, latency, latency, latency)
    return Figures(
        num_requests=2,
        num_errors=len(errors),
        num_timeouts=0,
        errors=tuple(ErrorCount(text, 1) for text in errors),
        wall_seconds=1.0,
        output_tokens=8,
        output_tokens_per_second=tokens_per_second,
        requests_per_second=tokens_per_second / 4,
        ttft=spread,
        gap=spread,
        tpot=spread,
        latency=spread,
        goodput=math.nan,
        share_within_slo=math.nan,
        worst_lag_seconds=0.0,
        client_cpu_share=0.1,
        client_limited=limited,
    )


def make_round(
    config: str,
    number: int,
    figures: Figures | None = None,
    *,
    scenario: str = SCENARIO.name,
    token_ids: tuple[tuple[int, ...], ...] = TOKENS,
    batches: BatchSizes | None = None,
    kv: KvUse | None = None,
) -> RoundResult:
    return RoundResult(config, scenario, number, figures or make_figures(), token_ids, batches, kv)


def make_comparison(
    configs: Sequence[Configuration],
    rounds: Sequence[RoundResult],
    scenarios: Sequence[Scenario] = (SCENARIO,),
    plan: Plan | None = None,
) -> Comparison:
    num_rounds = max((result.round for result in rounds), default=1)
    stay_results = tuple(
        ServerRun((stay.configuration,), stay.rounds, 3.0, 1 << 30)
        for stay in stays([config.name for config in configs], num_rounds)
    )
    plan = plan or Plan(tuple(scenarios), num_rounds, seed=0)
    return Comparison(tuple(configs), plan, tuple(rounds), stay_results)


def compare_speeds(speeds: Mapping[str, Sequence[float]], scenario: Scenario = SCENARIO) -> Comparison:
    """`speeds`: output tokens/s by configuration and round. Latencies are 100 divided by the speed."""
    rounds = [
        make_round(name, number, make_figures(speed, 100 / speed), scenario=scenario.name)
        for name, values in speeds.items()
        for number, speed in enumerate(values, start=1)
    ]
    return make_comparison([make_configuration(name) for name in speeds], rounds, (scenario,))
