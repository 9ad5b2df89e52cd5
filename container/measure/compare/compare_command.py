"""The command `lmi compare`."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from container.machine import Machine, detect
from container.measure.bench.errors import BenchError
from container.measure.bench.lengths import Lengths
from container.measure.bench.options import load_options
from container.measure.compare import aws_post, report
from container.measure.compare.caveats import caveats
from container.measure.compare.configurations import Arm, BadArm, Named, names_for, read_arms, warnings
from container.measure.compare.plan import Plan, Scenario
from container.measure.compare.report import Section, Setting
from container.measure.compare.results import Comparison
from container.measure.compare.run import Runner, Workloads
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import ArmFailed, ArmServer, RunningArm, StartArm
from container.measure.compare.setting import setting
from container.measure.compare.terminal import SaidOnce, view_for
from container.measure.compare.verdict import headline
from container.models import files as model_files
from container.progress import view_for as progress_for
from container.run import launch
from container.run.stop_signals import StopRequested, StopSignals

_MAX_ROUNDS = 100
_MAX_REQUESTS = 100_000
_WAVES = 4
"""Requests for each user in a round: users fall out of step, and batches change while they run."""
_POST_REQUESTS = 32
_TABLE_WIDTH = 140
_STOPPED = 130
"""Exit code after a request to stop, as shells have it."""


@dataclass(frozen=True, slots=True)
class Asked:
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
    help="Compare the three configurations of the AWS post on the bundled model, and two more that split its gain.",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    help="With --aws-post: the folder properties_examples, if it is not beside the package.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, _MAX_ROUNDS),
    default=5,
    show_default=True,
    help="Of each configuration. More rounds find smaller differences.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, _MAX_REQUESTS),
    show_default=f"{_WAVES} for each user; {_POST_REQUESTS} with --aws-post",
    help="In a round.",
)
@load_options(Lengths.SPREAD, output_tokens=64)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the requests; each round adds its number."
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A model folder, or a tokenizer.json, for the prompts of all configurations, in place of their models' own.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("lmi-compare.md"),
    show_default=True,
    help="The report in Markdown.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="All measurements and the summary as JSON.",
)
@click.pass_context
def compare(
    context: click.Context,
    paths: tuple[Path, ...],
    post: bool,
    examples: Path | None,
    rounds: int,
    requests: int | None,
    users: int,
    lengths: str,
    input_tokens: int,
    output_tokens: int,
    seed: int,
    dialect: str,
    tokenizer: Path | None,
    timeout: float,
    output: Path,
    json_path: Path | None,
) -> None:
    """Benchmark configurations under the same load and report which is faster, with confidence intervals."""
    _check_arms(context, paths, post, examples)
    for file in (output, json_path):
        if file is not None and not file.absolute().parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {file.absolute().parent}")
    scenarios = (
        aws_post.scenarios(requests or _POST_REQUESTS, users)
        if post
        else (_scenario(users, requests or _WAVES * users, input_tokens, output_tokens, Lengths(lengths)),)
    )
    plan = Plan(scenarios, rounds, seed, dialect, timeout)
    asked = Asked(paths, post, examples, plan, tokenizer, output, json_path)
    environ = launch.environment()
    try:
        with StopSignals() as signals:
            code = run(asked, environ, detect(environ), ArmServers(environ))
            signals.raising = False
    except StopRequested:
        click.echo("stopped; no report was written", err=True)
        code = _STOPPED
    except (BadArm, ArmFailed, BenchError, NoMetrics, aws_post.NoExamples) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


def _scenario(users: int, requests: int, input_tokens: int, output_tokens: int, lengths: Lengths) -> Scenario:
    name = f"{input_tokens} tokens in, {output_tokens} out"
    if lengths is Lengths.SPREAD:
        name += " on average"
    return Scenario(name, input_tokens, output_tokens, requests, users, lengths)


def _check_arms(context: click.Context, paths: Sequence[Path], post: bool, examples: Path | None) -> None:
    """Raises `UsageError` for arguments that exclude each other."""
    if not post:
        if len(paths) < 2:
            raise click.UsageError(f"PATH: two configurations or more are compared (got {len(paths)})")
        if examples is not None:
            raise click.UsageError("--examples: only with --aws-post")
        return
    if paths:
        raise click.UsageError(
            f"PATH: not with --aws-post, which has its own configurations (got {' '.join(map(str, paths))})"
        )
    for name in ("lengths", "input_tokens", "output_tokens"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--{name.replace('_', '-')}: not with --aws-post, whose two scenarios define the tokens"
            )


@dataclass(frozen=True, slots=True)
class ArmServers:
    """Starts configurations as `lmi serve` does.

    Their servers have no `/admin` routes: a comparison does not use them, and the caller's token is for other servers.
    """

    environ: Mapping[str, str]

    def __call__(self, arm: Arm, log: Path) -> RunningArm:
        return ArmServer.start(arm, log, launch.without_admin_token(self.environ))


def run(asked: Asked, environ: Mapping[str, str], machine: Machine, start: StartArm) -> int:
    """Measure, print, write. Returns the exit code. Raises what `Runner.run` and `read_arms` raise."""
    where = setting(shlex.join(["lmi", *sys.argv[1:]]), machine)
    with tempfile.TemporaryDirectory(prefix="lmi-compare-") as made:
        arms = _arms(asked, Path(made), environ, machine)
        for sentence in warnings(arms):
            click.echo(f"warning: {sentence}", err=True)
        logs = Path(tempfile.mkdtemp(prefix="lmi-compare-logs-"))
        tokenizers = {arm.name: asked.tokenizer or arm.model_folder for arm in arms}
        try:
            with view_for(sys.stderr) as view:
                comparison = Runner(arms, asked.plan, Workloads(tokenizers), start, logs, view).run()
        except StopRequested:
            shutil.rmtree(logs, ignore_errors=True)
            raise
    sections = aws_post.sections(comparison) if asked.aws_post else ()
    _publish(asked, comparison, where, sections)
    if comparison.num_failed:
        click.echo(
            f"error: {comparison.num_failed} requests failed; the servers' logs are in {logs}", err=True
        )
        return 1
    shutil.rmtree(logs)
    return 0


def _arms(asked: Asked, made: Path, environ: Mapping[str, str], machine: Machine) -> tuple[Arm, ...]:
    """Read and prepare the configurations. made: a folder for those that are derived from others."""
    if asked.aws_post:
        named = aws_post.named_arms(aws_post.examples_folder(asked.examples), made, environ)
    else:
        named = tuple(Named(*one) for one in zip(names_for(asked.paths), asked.paths, strict=True))
    progress = SaidOnce(progress_for(sys.stderr))  # most share one model
    try:
        return read_arms(named, environ, machine, lambda source: model_files.obtain(source, progress))
    finally:
        progress.finish()


def _publish(asked: Asked, comparison: Comparison, where: Setting, sections: Sequence[Section]) -> None:
    """To the terminal and into the files."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_TABLE_WIDTH)
    for table in report.terminal_tables(comparison, sections):
        console.print(table.rich())
    for sentence in (*headline(comparison), *caveats(comparison)):
        click.echo(f"- {sentence}")
    asked.output.write_text(report.markdown(comparison, where, sections), encoding="utf-8")
    click.echo(f"report: {asked.output}", err=True)
    if asked.json_path is not None:
        asked.json_path.write_text(report.as_json(comparison, where, sections), encoding="utf-8")
        click.echo(f"JSON: {asked.json_path}", err=True)
