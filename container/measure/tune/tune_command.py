"""`lmi tune`: find the batching options that meet a goal."""

from __future__ import annotations

import functools
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from container.explain.check_command import named_target
from container.explain.target import ServingTarget, this_machine
from container.machine import Machine, detect
from container.measure.bench.choice import LoadChoice
from container.measure.bench.options import (
    count_option,
    dialect_option,
    load_options,
    seed_option,
    slo_option,
    tokenizer_option,
)
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchError
from container.measure.compare.compare_command import DEFAULT_LOAD
from container.measure.compare.configurations import NamedPath, names_for
from container.measure.compare.derive import file_of, rewrite
from container.measure.compare.plan import Plan
from container.measure.compare.report import Provenance, make_provenance
from container.measure.compare.results import End
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import (
    ServerFailed,
    environment_for_servers,
    logs_folder,
    server_starter,
    with_logs,
)
from container.measure.output import (
    bullets,
    json_option,
    plain_json,
    publish,
    require_writable,
    writing,
)
from container.measure.report.report_command import report_option, write_report
from container.measure.simulate.machine_options import machine_options, step_times
from container.measure.simulate.server import CannotSimulateError, read_server
from container.measure.stoppable import stoppable
from container.measure.tune import report
from container.measure.tune.goal import Goal, parse_goal
from container.measure.tune.real_runs import RealRuns, TimesOf, learn_times
from container.measure.tune.search import shortlist
from container.measure.tune.space import SearchSpace, read_settings
from container.measure.tune.tuning import Explorer, Tuning
from container.models import files as model_files
from container.progress import view_for
from lmi_server.properties import loader

_SUFFIX = ".tuned"
_NUM_VERIFIED = 3


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Parsed command line."""

    path: Path
    goal: Goal
    settings: Mapping[str, Sequence[str]]
    """Values to try, by option."""
    plan: Plan
    target: ServingTarget | None
    """The machine to simulate; None means this one."""
    model: Path | None
    step_trace: Path | None
    num_simulations: int
    num_verified: int
    tokenizer: Path | None
    traced: bool
    """Whether servers write step traces, for the report."""


@click.command(
    epilog="PATH is a serving.properties file or a folder that contains one. With --device or --instance nothing is"
    " run, and all figures are predicted. Exit code 0 when the goal is met, 1 when no configuration meets its limits or"
    " a server failed, 2 when the command line is wrong, 130 when stopped."
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--goal",
    "goal_text",
    required=True,
    help="Limits and one objective: 'p95 ttft < 500ms, errors < 1%, max tokens/s'.",
)
@click.option(
    "--search",
    "settings",
    multiple=True,
    metavar="KEY=VALUE,VALUE",
    help="Try these values of an option in addition to the file's own, instead of the default ones. If repeated, all"
    " combinations are tried. Options other than the standard batching options are searched only if named here, such as"
    " option.quantize=none,int8.",
)
@count_option("--simulations", 200, "Maximum number of configurations to simulate.", most=10_000)
@click.option(
    "--verify",
    "num_verified",
    type=click.IntRange(0, 16),
    help="Number of best configurations to run, in addition to the unchanged file.",
    show_default=f"{_NUM_VERIFIED}; with --device or --instance 0",
)
@count_option("--rounds", 5, "Rounds per configuration that is run.", most=100)
@machine_options
@load_options(DEFAULT_LOAD)
@dialect_option
@slo_option
@seed_option
@tokenizer_option("Model folder or tokenizer.json for the prompts, instead of the model's own.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the best configuration to this file.",
    show_default=f"serving.properties{_SUFFIX} beside the file",
)
@click.option("--force", is_flag=True, help="Overwrite the --output file.")
@report_option
@json_option
def tune(
    path: Path,
    goal_text: str,
    settings: tuple[str, ...],
    simulations: int,
    num_verified: int | None,
    rounds: int,
    instance: str | None,
    device: str | None,
    count: int | None,
    model: Path | None,
    step_trace: Path | None,
    load: LoadChoice,
    dialect: str,
    slo: Slo | None,
    seed: int,
    tokenizer: Path | None,
    timeout: float,
    output: Path | None,
    force: bool,
    report_path: Path | None,
    json_path: Path | None,
) -> None:
    """Find the batching options that best meet a goal.

    Many configurations are simulated with the engine's own scheduler. The best ones and the original file are run in
    interleaved rounds. The winner is written as a commented serving.properties.
    """
    output = output or file_of(path).with_name(file_of(path).name + _SUFFIX)
    require_writable(output, report_path, json_path)
    try:
        if output.exists() and not force:
            raise BenchError(f"--output: {output} exists; use --force to overwrite it")
        goal = parse_goal(goal_text)
        if slo is None and any(measure.key == "goodput" for measure in goal.measures):
            raise BenchError("--goal: goodput requires --slo (latency limits per request)")
        target = named_target(instance, device, count)
        if target is not None and num_verified:
            raise BenchError("--verify: not supported with --device and --instance, because nothing is run")
        if num_verified is None:
            num_verified = 0 if target else _NUM_VERIFIED
        if report_path and not num_verified:
            raise BenchError(
                "--report: requires real rounds; not supported with --verify 0, --device and --instance"
            )
        plan = Plan((load.scenario(DEFAULT_LOAD),), rounds, seed, dialect, timeout, slo=slo)
        options = TuneOptions(
            path=path,
            goal=goal,
            settings=read_settings(settings),
            plan=plan,
            target=target,
            model=model,
            step_trace=step_trace,
            num_simulations=simulations,
            num_verified=num_verified,
            tokenizer=tokenizer,
            traced=report_path is not None,
        )
    except BenchError as error:
        raise click.UsageError(str(error)) from error
    environ = environment_for_servers()
    machine = detect(environ)
    provenance = make_provenance(shlex.join(["lmi", *sys.argv[1:]]), machine)
    with stoppable("stopped; nothing was written"), logs_folder("lmi-tune-logs-") as logs:
        tuning = _tune(options, environ, machine, logs)
    try:
        _publish(tuning, provenance, output, report_path, json_path)
    finally:
        if tuning.failure:
            click.echo(with_logs(f"error: {tuning.failure}", logs), err=True)
        else:
            shutil.rmtree(logs)
    sys.exit(0 if tuning.goal_is_met and not tuning.failure else 1)


def _tune(options: TuneOptions, environ: Mapping[str, str], machine: Machine, logs: Path) -> Tuning:
    """Simulate, and run the best configurations. Raises the errors of `Explorer.explore` and `RealRuns.run`."""
    view = view_for(sys.stderr)
    runs = RealRuns(options.plan, environ, machine, options.tokenizer, server_starter(environ), logs, view)
    (name,) = names_for([str(options.path)])
    with tempfile.TemporaryDirectory(prefix="lmi-tune-") as work_folder:
        explorer = Explorer(
            NamedPath(name, options.path),
            options.plan,
            options.goal,
            options.target or this_machine(machine),
            options.model,
            environ,
            Path(work_folder),
            view,
        )
        if options.target is None:
            model_files.obtain(loader.load(options.path, environ).config.source, view)
        if options.target is None and options.step_trace is None:
            times = functools.partial(
                learn_times, runs=runs, copies_folder=explorer.copies_folder, skip=explorer.skip
            )
        else:
            times = functools.partial(_given_times, explorer, options.target, options.step_trace)
        explorer.explore(options.settings, times, options.num_simulations)
        comparison = None
        failure = ""
        if options.num_verified:
            best = shortlist(explorer.proposals, options.goal, options.num_verified)
            files = [explorer.file, *(one.file for one in best)]
            try:
                comparison = runs.run(files, options.plan.num_rounds, traced=options.traced)
                failure = comparison.stopped if comparison.end is End.SERVER_FAILED else ""
            except (NoMetrics, ServerFailed) as error:
                failure = str(error)
    return Tuning(explorer, comparison, runs.num_rounds, failure)


def _given_times(
    explorer: Explorer, target: ServingTarget | None, step_trace: Path | None, space: SearchSpace
) -> TimesOf:
    """Return the step times that the command line specifies. Raises CannotSimulateError."""
    if step_trace is None:
        return lambda server: step_times(server, target, None)
    if space.origin_changes:
        raise CannotSimulateError(
            f"--calibrate: not supported with --search of {', '.join(space.origin_changes)}, which changes step times;"
            " remove one of the two"
        )
    server = read_server(space.origin.path, explorer.model, explorer.target)
    times = step_times(server, target, step_trace)
    return lambda server: times


def _publish(
    tuning: Tuning, provenance: Provenance, output: Path, report_path: Path | None, json_path: Path | None
) -> None:
    """Write the files and print the result."""
    section = report.section(tuning)
    document = plain_json(report.json_values(tuning, provenance, section))

    def write_configuration() -> str | None:
        if tuning.failure or not tuning.goal_is_met or tuning.best is tuning.baseline:
            return None
        lines, gain = report.heading(tuning, provenance), report.effect(tuning)
        file = file_of(tuning.explored.file.path)
        with writing("--output", output):
            output.write_bytes(rewrite(file, tuning.best.changes, output.absolute().parent, lines, gain))
        return f"configuration: {output}"

    publish(
        section.tables,
        bullets(section.bullets),
        document,
        json_path,
        write_configuration,
        lambda: write_report(document["verification"], report_path if tuning.comparison else None),
    )
