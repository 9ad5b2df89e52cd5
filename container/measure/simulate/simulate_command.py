"""`lmi simulate`: predict latencies, throughput and cost without a model."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from container.explain.check_command import named_target
from container.explain.target import this_machine
from container.machine import detect
from container.measure.bench.choice import LoadChoice
from container.measure.bench.options import load_options, seed_option, slo_option
from container.measure.bench.report import REQUEST_COLUMNS, request_rows
from container.measure.bench.scenario import PRESETS
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchError
from container.measure.output import (
    csv_option,
    json_option,
    publish,
    require_writable,
    write_csv,
)
from container.measure.simulate.machine_options import machine_options, step_times
from container.measure.simulate.prices import Price, cost, read_prices
from container.measure.simulate.report import SimulationOrigin, SimulationReport
from container.measure.simulate.server import CannotSimulateError, read_server
from container.measure.simulate.simulation import simulate as run_simulation
from container.progress import view_for
from container.run import launch

_DEFAULT = replace(PRESETS["aws-1"], name="")


@click.command(
    epilog="PATH is a serving.properties file or a folder that contains one. No model is loaded and no request is sent."
    " Without --device and --instance this machine is simulated, and --calibrate gives its step times. Exit code 0 when"
    " every request succeeded, else 1; 2 when the command line is wrong."
)
@click.argument("path", type=click.Path(path_type=Path))
@machine_options
@load_options(_DEFAULT)
@slo_option
@seed_option
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with prices of instances, in the format of container/measure/simulate/prices.json.",
)
@click.option(
    "--price-per-hour", type=click.FloatRange(0, min_open=True), help="Price of the machine, in USD."
)
@csv_option
@json_option
def simulate(
    path: Path,
    instance: str | None,
    device: str | None,
    count: int | None,
    model: Path | None,
    step_trace: Path | None,
    load: LoadChoice,
    timeout: float,
    slo: Slo | None,
    seed: int,
    prices: Path | None,
    price_per_hour: float | None,
    csv_path: Path | None,
    json_path: Path | None,
) -> None:
    """Predict latencies, throughput and cost of a configuration.

    Step times are predicted from the data sheets of GPUs, or fitted to a step trace of any machine (--calibrate). The
    engine's own scheduler, KV cache and policies run in virtual time with these step times. Loads are those of
    `lmi bench`. The same load, seed and machine give the same result.
    """
    require_writable(json_path, csv_path)
    try:
        target = named_target(instance, device, count)
        if target is None and step_trace is None:
            raise CannotSimulateError("--instance, --device: missing; give one of them, or --calibrate")
        if prices and price_per_hour:
            raise CannotSimulateError("--prices, --price-per-hour: mutually exclusive; give one of them")
        if prices and not instance:
            raise CannotSimulateError(
                "--prices: requires --instance; for other machines use --price-per-hour"
            )
        scenario = load.scenario(_DEFAULT)
        server = read_server(path, model, target or this_machine(detect(launch.environment())))
        times = step_times(server, target, step_trace)
        name = target.machine.name if target else "this machine"
        price_list = [Price(name, price_per_hour)] if price_per_hour else read_prices(prices, name)
    except (BenchError, CannotSimulateError) as error:
        raise click.UsageError(str(error)) from error

    view, ended, total = view_for(sys.stderr), itertools.count(1), scenario.workload.num_requests
    view.start(f"simulating {scenario.arrivals.describe(total)}")
    try:
        found = run_simulation(
            server,
            times,
            scenario,
            seed=seed,
            timeout=timeout,
            slo=slo,
            on_done=lambda outcome: view.update(next(ended), total),
        )
    finally:
        view.finish()
    origin = SimulationOrigin(str(path), "lmi", scenario, seed, slo, "", 0, name, times.describe())
    costs = tuple(cost(price, found, server.copies) for price in price_list)
    report = SimulationReport(origin, found.metrics, server, times, found.stats, costs)
    publish(
        [report.table()],
        itertools.starmap(Text, report.lines()),
        report.json_values(),
        json_path,
        lambda: write_csv(REQUEST_COLUMNS, request_rows(1, found.run, found.requests), csv_path),
    )
    sys.exit(0 if report.succeeded else 1)
