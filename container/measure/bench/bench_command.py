"""The `lmi bench` command."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text
from tokenizers import Tokenizer

from container.measure.bench.arrivals import Burst, OpenLoop, Users, UserSession
from container.measure.bench.choice import LoadChoice
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import Figures, figures
from container.measure.bench.lengths import Fixed
from container.measure.bench.load import LoadRun, run_with_progress
from container.measure.bench.options import (
    count_option,
    dialect_option,
    load_options,
    seed_option,
    slo_option,
    tokenizer_option,
)
from container.measure.bench.preflight import server_url, wait_ready
from container.measure.bench.report import (
    REQUEST_COLUMNS,
    BenchOrigin,
    BenchReport,
    SearchReport,
    request_rows,
)
from container.measure.bench.scenario import Scenario
from container.measure.bench.search import MAX_TRIALS, RateTrial, judge_rate, search_rate
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchError, BenchRequest, Workload, load_tokenizer, make_requests
from container.measure.output import (
    csv_option,
    json_option,
    publish,
    require_writable,
    write_csv,
)
from container.models.files.bundled import BUNDLED_MODEL, bundled_folder
from container.progress import ProgressView, view_for
from container.run import launch

_DEFAULT = Scenario("", Workload(Fixed(32), Fixed(128), 128), Users(32))


@dataclass(frozen=True, slots=True)
class _Client:
    """Client that sends load to a server and records a row of REQUEST_COLUMNS for each request."""

    url: str
    dialect: str
    timeout: float
    slo: Slo | None
    view: ProgressView
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def warm_up(self, scenario: Scenario, requests: Sequence[BenchRequest]) -> None:
        """Send the warm-up. Raises BenchError if a request fails: the measured ones would fail too."""
        sessions = scenario.arrivals.sessions(requests, 0)
        run = self._load(sessions, f"warm-up, {len(requests)} requests")
        if errors := figures(run, requests).errors:
            raise BenchError(f"{self.url}: the warm-up failed: {errors[0].text}")

    def measure(
        self, scenario: Scenario, requests: Sequence[BenchRequest], seed: int, number: int = 1
    ) -> tuple[LoadRun, Figures]:
        """Run the scenario and record its rows. number: number of the run, from 1."""
        sessions = scenario.arrivals.sessions(requests, seed)
        run = self._load(sessions, scenario.arrivals.describe(len(requests)))
        self.rows.extend(request_rows(number, run, requests))
        return run, figures(run, requests, self.slo)

    def _load(self, sessions: Sequence[UserSession], title: str) -> LoadRun:
        return run_with_progress(self.url, DIALECTS[self.dialect], sessions, self.timeout, self.view, title)


@click.command(
    epilog="Latencies are measured from the scheduled send time of a request. Exit code 0 when every request succeeded"
    " (--find-rate: when a rate is sustained), else 1; 2 when the command line is wrong. The same seed"
    " gives the same prompts: use another one for a server with a prefix cache."
)
@click.argument("url")
@load_options(_DEFAULT)
@dialect_option
@slo_option
@click.option(
    "--find-rate",
    is_flag=True,
    help="Find the highest request rate that the server sustains: requests complete as fast as they arrive and, with"
    " --slo, 95 % of them meet the limits. --rate sets the first rate to try.",
)
@seed_option
@tokenizer_option("Folder of the served model, or its tokenizer.json. Default: the bundled model's.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Maximum number of seconds to wait until the server is ready.",
)
@count_option("--warm-up", 2, "Number of short warm-up requests, which are not counted.", least=0, most=1000)
@csv_option
@json_option
def bench(
    url: str,
    load: LoadChoice,
    slo: Slo | None,
    find_rate: bool,
    seed: int,
    dialect: str,
    tokenizer: Path | None,
    timeout: float,
    wait: float,
    warm_up: int,
    csv_path: Path | None,
    json_path: Path | None,
) -> None:
    """Benchmark the server at URL: latencies and throughput.

    By default the load is a closed loop: each user sends its next request when the last one is answered. --rate,
    --burst and --trace select other loads, --preset a well-known one. A request fails if its prompt or answer does not
    have exactly the expected number of tokens.
    """
    view = view_for(sys.stderr)
    require_writable(json_path, csv_path)
    try:
        url = server_url(url)
        scenario = load.scenario(_DEFAULT)
        if find_rate and (other := load.given("users", "ramp", "burst", "trace")):
            raise BenchError(f"--find-rate: not supported with {', '.join(other)}; it sets the rate itself")
        path = tokenizer or _bundled_tokenizer()
        loaded = load_tokenizer(path)
        measured = make_requests(scenario.workload, loaded, seed)
        short = scenario.warm_up(warm_up or 1)
        # Another seed, so that no warm-up prompt occurs in the measured run.
        first = make_requests(short.workload, loaded, -1 - seed)
    except BenchError as error:
        raise click.UsageError(str(error)) from error

    client = _Client(url, dialect, timeout, slo, view)
    view.say(f"tokenizer: {path}{'' if tokenizer else f', of the bundled model {BUNDLED_MODEL}'}")
    wait_ready(url, wait, view.say)
    if warm_up:
        client.warm_up(short, first)
    num_warm_up = len(first) if warm_up else 0
    origin = BenchOrigin(url, dialect, scenario, seed, slo, str(path), num_warm_up)
    found: BenchReport | SearchReport
    if find_rate:
        found = _search(client, origin, loaded, load.rate)
    else:
        found = BenchReport(origin, client.measure(scenario, measured, seed)[1])
    publish(
        [found.table()],
        itertools.starmap(Text, found.lines()),
        found.json_values(),
        json_path,
        lambda: write_csv(REQUEST_COLUMNS, client.rows, csv_path),
    )
    sys.exit(0 if found.succeeded else 1)


def _search(client: _Client, origin: BenchOrigin, tokenizer: Tokenizer, start: float | None) -> SearchReport:
    """Search for the highest rate. Each run has its own prompts, so that none is in a prefix cache."""
    scenario = origin.scenario
    shape = scenario.arrivals.burstiness if isinstance(scenario.arrivals, OpenLoop) else 1.0
    numbers = itertools.count(1)

    def trial(rate: float) -> RateTrial:
        run_number = next(numbers)
        seed = origin.seed * MAX_TRIALS + run_number - 1
        requests = make_requests(scenario.workload, tokenizer, seed)
        arrivals = Burst() if math.isinf(rate) else OpenLoop(rate, shape)
        run, found = client.measure(replace(scenario, arrivals=arrivals), requests, seed, run_number)
        result = judge_rate(rate, run, found, origin.slo)
        client.view.say(result.too_high or "sustained")
        return result

    return SearchReport(origin, search_rate(trial, start))


def _bundled_tokenizer() -> Path:
    folder = bundled_folder(launch.cache_dir(launch.environment()))
    if not folder.is_dir():
        raise BenchError(
            "--tokenizer: not given, and the bundled model is not prepared (run lmi prepare "
            f"{BUNDLED_MODEL}); "
            "allowed: the folder of the served model, or its tokenizer.json"
        )
    return folder
