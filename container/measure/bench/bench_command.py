"""`lmi bench URL`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from container.measure.bench.dialects import DIALECTS, Dialect
from container.measure.bench.errors import BenchError
from container.measure.bench.figures import figures
from container.measure.bench.lengths import Lengths
from container.measure.bench.load import LoadRun, run_load
from container.measure.bench.options import load_options
from container.measure.bench.preflight import server_url, wait_ready
from container.measure.bench.report import BenchReport
from container.measure.bench.workload import BenchRequest, Workload, load_tokenizer, make_requests
from container.models.prepare import BUNDLED_MODEL, bundled_folder
from container.progress import ProgressView, view_for
from container.run import launch

_MAX_REQUESTS = 100_000
_TABLE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class _Target:
    """Whom to ask, and how."""

    url: str
    dialect: Dialect
    timeout: float
    num_users: int


@click.command(
    epilog="Times are from when a request was to be sent. Exit code 0 when every request went well, 1 when one failed, "
    "2 when the command is not understood. The same seed asks the same prompts: take another one for a server that "
    "keeps what it has computed."
)
@click.argument("url")
@load_options(Lengths.FIXED, output_tokens=128)
@click.option(
    "--requests", type=click.IntRange(1, _MAX_REQUESTS), default=64, show_default=True, help="In all."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the prompts.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="The served model's folder, or its tokenizer.json; else that of the bundled model.",
)
@click.option(
    "--wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for the server to be ready."
)
@click.option(
    "--warm-up",
    type=click.IntRange(0, _MAX_REQUESTS),
    default=2,
    show_default=True,
    help="Requests not counted.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write JSON there; - is stdout.",
)
def bench(
    url: str,
    users: int,
    lengths: str,
    requests: int,
    input_tokens: int,
    output_tokens: int,
    seed: int,
    dialect: str,
    tokenizer: Path | None,
    timeout: float,
    wait: float,
    warm_up: int,
    json_path: Path | None,
) -> None:
    """Put load on the server at URL and report latencies and throughput.

    Each of the users sends its next request as soon as it has the answer to the one before. A request whose prompt or
    answer does not have exactly the wanted number of tokens has failed.
    """
    view = view_for(sys.stderr)
    try:
        target = _Target(server_url(url), DIALECTS[dialect], timeout, users)
        workload = Workload(input_tokens, output_tokens, requests, users, seed, Lengths(lengths))
        _check_writable(json_path)
        path = tokenizer or _bundled_tokenizer()
        loaded = load_tokenizer(path)
        asked = make_requests(workload, loaded)
        # Of another seed: what warms the server up is not asked again.
        first = (
            make_requests(replace(workload, num_requests=warm_up, seed=-1 - seed), loaded) if warm_up else ()
        )
    except BenchError as error:
        raise click.UsageError(str(error)) from error
    view.say(f"tokenizer: {path}{'' if tokenizer else f', of the bundled model {BUNDLED_MODEL}'}")
    try:
        wait_ready(target.url, wait, view.say)
        _warm_up(target, first, view)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    run = _load(target, asked, f"{requests} requests of {users} users", view)
    report = BenchReport(target.url, dialect, workload, str(path), warm_up, figures(run, asked))
    _write(report, json_path)
    sys.exit(1 if report.figures.num_errors else 0)


def _bundled_tokenizer() -> Path:
    folder = bundled_folder(launch.cache_dir(launch.environment()))
    if not folder.is_dir():
        raise BenchError(
            "--tokenizer: not given, and the bundled model is not prepared (lmi prepare does it); "
            "accepted: the served model's folder, or its tokenizer.json"
        )
    return folder


def _check_writable(json_path: Path | None) -> None:
    """Before the load, not after it."""
    if json_path is not None and str(json_path) != "-" and not json_path.absolute().parent.is_dir():
        raise BenchError(f"--json: {json_path.parent} is no folder")


def _load(target: _Target, requests: Sequence[BenchRequest], title: str, view: ProgressView) -> LoadRun:
    """Run the requests and show how far they are."""
    done = itertools.count(1)
    view.start(title)
    try:
        return run_load(
            target.url,
            target.dialect,
            requests,
            target.num_users,
            target.timeout,
            lambda: view.update(next(done), len(requests)),
        )
    finally:
        view.finish()


def _warm_up(target: _Target, requests: Sequence[BenchRequest], view: ProgressView) -> None:
    """Raises BenchError when one fails: then the others would too."""
    if not requests:
        return
    summed_up = figures(_load(target, requests, f"warm-up, {len(requests)} requests", view), requests)
    if summed_up.errors:
        raise BenchError(f"{target.url}: the warm-up failed: {summed_up.errors[0].text}")


def _write(report: BenchReport, json_path: Path | None) -> None:
    to_stdout = str(json_path) == "-"
    console = Console(file=sys.stderr if to_stdout else sys.stdout)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    report.print_to(console)
    if to_stdout:
        click.echo(report.to_json())
    elif json_path is not None:
        try:
            json_path.write_text(report.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"--json: cannot write {json_path}: {error.strerror}") from error
