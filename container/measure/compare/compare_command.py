"""The `lmi compare` command."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from container.machine import Machine, detect
from container.measure.bench.arrivals import Users
from container.measure.bench.choice import LoadChoice
from container.measure.bench.lengths import Exponential, Uniform
from container.measure.bench.options import (
    count_option,
    dialect_option,
    load_options,
    seed_option,
    tokenizer_option,
)
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import BenchError, Workload
from container.measure.compare import aws_post, report
from container.measure.compare.caveats import caveats
from container.measure.compare.configurations import warnings
from container.measure.compare.plan import Plan, StoppingRule
from container.measure.compare.report import Provenance
from container.measure.compare.results import Comparison, End
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.selection import Selection, read_selection, tokenizers_for
from container.measure.compare.server_process import (
    StartServer,
    environment_for_servers,
    logs_folder,
    server_starter,
    with_logs,
)
from container.measure.numbers import read_quantity
from container.measure.output import (
    bullets,
    json_option,
    plain_json,
    publish,
    require_writable,
    writing,
)
from container.measure.report.report_command import report_option, write_report
from container.measure.stoppable import STOPPED, stoppable
from container.progress import view_for

DEFAULT_LOAD = Scenario("", Workload(Uniform.around(32), Exponential(64, 256), 128), Users(32))
"""Several requests per user, so that users fall out of step and batches change while they run."""
_MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Parsed command line."""

    selection: Selection
    plan: Plan
    tokenizer: Path | None
    output: Path
    json_path: Path | None
    step_traces: Path | None = None
    report: Path | None = None


class _Quantity(click.ParamType[float]):
    """Option type for a number above 0 with a unit."""

    def __init__(self, name: str, units: Mapping[str, float], allowed: str, most: float = math.inf) -> None:
        """units: as for `read_quantity`; allowed: the valid values in words, for error messages."""
        self.name, self._units, self._allowed, self._most = name, units, allowed, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = read_quantity(str(value), self._units)
        if not 0 < found <= self._most:
            self.fail(f"not a {self.name} (got {value}); allowed: {self._allowed}", param, ctx)
        return found


_SHARE = _Quantity("percentage", {"%": 100}, "above 0 and at most 50 %, such as 3%", most=0.5)
_DURATION = _Quantity("time", {"s": 1, "m": 1 / 60, "h": 1 / 3600}, "a number with s, m or h, such as 10m")


@click.command(
    epilog="PATH is a serving.properties file, a folder that contains one, or the http:// URL of a running server. Each"
    " is compared with the first one. Servers that this command starts run one at a time, in the order A B, B A, A B; a"
    " server given by URL keeps running. Configurations that differ only in live settings share a server. Exit code 0"
    " when all requests succeeded, 1 when a request or a server failed, 130 when stopped."
)
@click.argument("places", metavar="[PATH PATH...]", nargs=-1)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE,VALUE",
    help="Compare values of an option for one PATH: option.max_rolling_batch_size=8,16,32. The first value is the"
    " baseline; a single value is compared with the unchanged file. If repeated, all combinations are compared.",
)
@click.option(
    "--attribute",
    is_flag=True,
    help="For one dynamic and one rolling PATH: attribute the gain to kernels, batch size, step-level scheduling and"
    " paging. Adds the configurations that this needs.",
)
@click.option(
    "--aws-post",
    "post",
    is_flag=True,
    help="Compare the three configurations of AWS's blog post on dynamic and rolling batching (Falcon), with the"
    " bundled model; three more configurations attribute the gain. 32 requests per scenario and round.",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    help="With --aws-post: the folder properties_examples, if it is not next to the package.",
)
@count_option("--rounds", 5, "Rounds per configuration. More rounds detect smaller differences.", most=100)
@click.option(
    "--precision",
    type=_SHARE,
    help="Run more rounds until the interval of output tokens/s is at most this wide to each side, such as 3%.",
)
@click.option(
    "--time",
    "max_seconds",
    type=_DURATION,
    help="Start rounds until this time has passed, such as 10m.",
)
@click.option(
    "--max-rounds",
    type=click.IntRange(1, 1000),
    help="With --precision or --time: maximum number of rounds.",
    show_default=f"{_MAX_ROUNDS}",
)
@load_options(DEFAULT_LOAD)
@dialect_option
@seed_option
@tokenizer_option(
    "Model folder or tokenizer.json for the prompts of all configurations, instead of their own."
)
@click.option(
    "--step-traces",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a step trace of each engine=MPI server to this folder.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("lmi-compare.md"),
    show_default=True,
    help="Write the Markdown report to this file.",
)
@report_option
@json_option
def compare(
    places: tuple[str, ...],
    settings: tuple[str, ...],
    attribute: bool,
    post: bool,
    examples: Path | None,
    rounds: int,
    precision: float | None,
    max_seconds: float | None,
    max_rounds: int | None,
    load: LoadChoice,
    seed: int,
    dialect: str,
    tokenizer: Path | None,
    timeout: float,
    step_traces: Path | None,
    output: Path,
    report_path: Path | None,
    json_path: Path | None,
) -> None:
    """Benchmark configurations under the same load.

    Reports which one is faster, with confidence intervals.
    """
    require_writable(output, report_path, json_path, step_traces)
    own = load.given("preset", "trace", "lengths", "input_tokens", "output_tokens") if post else ()
    if own:
        raise click.UsageError(f"{own[0]}: not supported with --aws-post, which sets the token counts")
    try:
        selection = Selection(places, settings, attribute, post, examples)
        scenarios = aws_post.scenarios(load) if post else (load.scenario(DEFAULT_LOAD),)
    except BenchError as error:
        raise click.UsageError(str(error)) from error
    stopping = None
    if precision is not None or max_seconds is not None:
        limit = math.inf if max_seconds is None else max_seconds
        if max_rounds is not None and max_rounds < rounds:
            if _is_given("rounds"):
                raise click.UsageError(
                    f"--max-rounds: less than --rounds (got {max_rounds}); allowed: at least {rounds}"
                )
            rounds = max_rounds
        stopping = StoppingRule(precision, max_rounds or max(rounds, _MAX_ROUNDS), limit)
    elif max_rounds is not None:
        raise click.UsageError("--max-rounds: requires --precision or --time; without them use --rounds")
    plan = Plan(scenarios, rounds, seed, dialect, timeout, stopping)
    options = CompareOptions(selection, plan, tokenizer, output, json_path, step_traces, report_path)
    environ = environment_for_servers()
    sys.exit(run_comparison(options, environ, detect(environ), server_starter(environ)))


def _is_given(parameter: str) -> bool:
    """Return whether a parameter of the current command is on the command line, and not a default."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


def run_comparison(
    options: CompareOptions, environ: Mapping[str, str], machine: Machine, start: StartServer
) -> int:
    """Run the comparison, write the files and print the results. Returns the exit code.

    Raises the errors of `ComparisonRunner.run` and `read_selection`.
    """
    origin = report.make_provenance(shlex.join(["lmi", *sys.argv[1:]]), machine)
    with stoppable("stopped; no report was written"):
        comparison, logs = _measure(options, environ, machine, start)
    failures = _failures(comparison)
    try:
        _publish(options, comparison, origin)
    finally:
        if failures:
            click.echo(with_logs(f"error: {failures}", logs), err=True)
        else:
            shutil.rmtree(logs)
    return STOPPED if comparison.end is End.INTERRUPTED else 1 if failures else 0


def _measure(
    options: CompareOptions, environ: Mapping[str, str], machine: Machine, start: StartServer
) -> tuple[Comparison, Path]:
    """Run the comparison. Returns the results and the folder of the servers' logs."""
    view = view_for(sys.stderr)
    if options.step_traces is not None:
        options.step_traces.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lmi-compare-") as work_folder:
        try:
            configs, plan = read_selection(
                options.selection, options.plan, Path(work_folder), environ, machine, view
            )
        finally:
            view.finish()
        for sentence in warnings(configs):
            click.echo(f"warning: {sentence}", err=True)
        tokenizers = tokenizers_for(configs, options.tokenizer)
        with logs_folder("lmi-compare-logs-") as logs:
            traces = options.step_traces or (options.report and logs)
            try:
                runner = ComparisonRunner(configs, plan, tokenizers, start, logs, view, traces)
                return runner.run(), logs
            finally:
                view.finish()


def _failures(comparison: Comparison) -> str:
    """Return what failed; empty if nothing did."""
    if comparison.end is End.SERVER_FAILED:
        return comparison.stopped
    number = comparison.num_failed
    return f"{'1 request' if number == 1 else f'{number} requests'} failed" if number else ""


def _publish(options: CompareOptions, comparison: Comparison, origin: Provenance) -> None:
    """Write the files and print the results."""
    extra = [aws_post.section(comparison)] if options.selection.aws_post else []
    written = report.make_report(comparison, origin, extra)
    document = plain_json(report.json_values(comparison, origin, extra))

    def write_markdown() -> str:
        with writing("--output", options.output):
            options.output.write_text(written.markdown(), encoding="utf-8")
        return f"report: {options.output}"

    publish(
        report.terminal_tables(comparison, extra),
        bullets((*written.findings, *caveats(comparison))),
        document,
        options.json_path,
        write_markdown,
        lambda: write_report(document, options.report),
    )
