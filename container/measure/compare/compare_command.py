"""`lmi compare`."""

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

from container.machine import Machine, detect
from container.measure.bench.arrivals import Users
from container.measure.bench.choice import LoadChoice
from container.measure.bench.lengths import Exponential, Uniform
from container.measure.bench.options import count_option, load_options, seed_option, tokenizer_option
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import BenchError, Workload
from container.measure.compare import aws_post, report
from container.measure.compare.caveats import caveats
from container.measure.compare.configurations import (
    BadConfiguration,
    Configuration,
    NamedPath,
    names_for,
    read_configurations,
    warnings,
)
from container.measure.compare.plan import Plan
from container.measure.compare.report import Provenance, Section
from container.measure.compare.results import Comparison
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import ServerFailed, ServerProcess, StartServer
from container.measure.compare.verdict import headline
from container.measure.output import console_for, json_option, require_folders, write_json
from container.models import files as model_files
from container.progress import ProgressView, view_for
from container.run import launch
from container.run.stop_signals import StopRequested, StopSignals

_DEFAULT = Scenario("", Workload(Uniform.around(32), Exponential(64, 256), 128), Users(32))
"""Several requests for each user: they fall out of step, and batches change while they run."""
_STOPPED = 130
"""Exit code after a signal to stop, as in shells."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The command line."""

    paths: tuple[Path, ...]
    aws_post: bool
    examples: Path | None
    plan: Plan
    tokenizer: Path | None
    output: Path
    json_path: Path | None


@click.command(
    epilog="PATH is a folder with a serving.properties, or such a file. Servers run one at a time, in the order"
    " A B, B A, A B. Exit code 0 when all requests were answered, 1 when a request or a server failed, 130 when"
    " stopped."
)
@click.argument("paths", metavar="[PATH PATH...]", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--aws-post",
    "post",
    is_flag=True,
    help="Compare the three configurations of the AWS post on the bundled model, and two more that split its gain:"
    " 32 requests of each scenario in a round.",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    help="With --aws-post: the folder properties_examples, if it is not beside the package.",
)
@count_option("--rounds", 5, "Rounds of each configuration. More rounds find smaller differences.", most=100)
@load_options(_DEFAULT)
@seed_option
@tokenizer_option(
    "Model folder or tokenizer.json for the prompts of all configurations, instead of their own."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("lmi-compare.md"),
    show_default=True,
    help="Write the Markdown report to this file.",
)
@json_option
def compare(
    paths: tuple[Path, ...],
    post: bool,
    examples: Path | None,
    rounds: int,
    load: LoadChoice,
    seed: int,
    dialect: str,
    tokenizer: Path | None,
    timeout: float,
    output: Path,
    json_path: Path | None,
) -> None:
    """Benchmark configurations under the same load.

    Reports which one is faster, with confidence intervals.
    """
    _check_paths(paths, post, examples, load)
    require_folders(output, json_path)
    try:
        scenarios = aws_post.scenarios(load) if post else (load.scenario(_DEFAULT),)
    except BenchError as error:
        raise click.UsageError(str(error)) from error
    plan = Plan(scenarios, rounds, seed, dialect, timeout)
    options = CompareOptions(paths, post, examples, plan, tokenizer, output, json_path)
    environ = launch.environment()
    # The caller's admin token is for other servers; these need no /admin routes.
    start = functools.partial(ServerProcess.start, environ=launch.without_admin_token(environ))
    try:
        with StopSignals() as signals:
            code = run_comparison(options, environ, detect(environ), start)
            signals.raising = False
    except StopRequested:
        click.echo("stopped; no report was written", err=True)
        code = _STOPPED
    except (BadConfiguration, ServerFailed, BenchError, NoMetrics) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


def _check_paths(paths: Sequence[Path], post: bool, examples: Path | None, load: LoadChoice) -> None:
    """Raises UsageError for arguments that exclude each other."""
    if not post:
        if len(paths) < 2:
            raise click.UsageError(f"PATH: give at least two configurations (got {len(paths)})")
        if examples is not None:
            raise click.UsageError("--examples: only with --aws-post")
        return
    if paths:
        raise click.UsageError(
            f"PATH: not with --aws-post, which has its own configurations (got {' '.join(map(str, paths))})"
        )
    own = load.given("preset", "trace", "lengths", "input_tokens", "output_tokens")
    if own:
        raise click.UsageError(f"{own[0]}: not with --aws-post, whose two scenarios set the token counts")


def run_comparison(
    options: CompareOptions, environ: Mapping[str, str], machine: Machine, start: StartServer
) -> int:
    """Measure, print, write. Returns the exit code.

    Raises: as `ComparisonRunner.run` and `read_configurations`.
    """
    origin = report.make_provenance(shlex.join(["lmi", *sys.argv[1:]]), machine)
    view = view_for(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="lmi-compare-") as made:
        try:
            configs = _read(options, Path(made), environ, machine, view)
        finally:
            view.finish()
        for sentence in warnings(configs):
            click.echo(f"warning: {sentence}", err=True)
        logs = Path(tempfile.mkdtemp(prefix="lmi-compare-logs-"))
        tokenizers = {config.name: options.tokenizer or config.model_folder for config in configs}
        try:
            comparison = ComparisonRunner(configs, options.plan, tokenizers, start, logs, view).run()
        except StopRequested:
            shutil.rmtree(logs, ignore_errors=True)
            raise
        finally:
            view.finish()
    sections = aws_post.sections(comparison) if options.aws_post else ()
    _publish(options, comparison, origin, sections)
    if comparison.num_failed:
        click.echo(
            f"error: {comparison.num_failed} requests failed; the servers' logs are in {logs}", err=True
        )
        return 1
    shutil.rmtree(logs)
    return 0


def _read(
    options: CompareOptions, made: Path, environ: Mapping[str, str], machine: Machine, view: ProgressView
) -> tuple[Configuration, ...]:
    """Read and prepare the configurations. made: a folder for those that are derived from others."""
    if options.aws_post:
        paths = aws_post.named_paths(aws_post.examples_folder(options.examples), made)
    else:
        names = names_for(options.paths)
        paths = tuple(NamedPath(name, path) for name, path in zip(names, options.paths, strict=True))
    # Most comparisons are of one model: it is looked up once.
    obtain = functools.cache(lambda source: model_files.obtain(source, view))
    return read_configurations(paths, environ, machine, obtain)


def _publish(
    options: CompareOptions, comparison: Comparison, origin: Provenance, sections: Sequence[Section]
) -> None:
    """Print the results and write the files."""
    console = console_for(options.json_path)
    for table in report.terminal_tables(comparison, sections):
        table.print_to(console)
    for sentence in (*headline(comparison), *caveats(comparison)):
        console.print(f"- {sentence}", markup=False, highlight=False, soft_wrap=True)
    options.output.write_text(report.markdown(comparison, origin, sections), encoding="utf-8")
    click.echo(f"report: {options.output}", err=True)
    write_json(report.json_values(comparison, origin, sections), options.json_path)
