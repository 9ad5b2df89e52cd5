"""`lmi bench URL`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import figures
from container.measure.bench.lengths import Lengths
from container.measure.bench.load import LoadRun, run_with_progress
from container.measure.bench.options import count_option, load_options, seed_option, tokenizer_option
from container.measure.bench.preflight import server_url, wait_ready
from container.measure.bench.report import BenchReport
from container.measure.bench.workload import (
    BenchError,
    BenchRequest,
    Workload,
    load_tokenizer,
    make_requests,
)
from container.measure.output import console_for, json_option, require_folders, write_json
from container.models.files.bundled import BUNDLED_MODEL, bundled_folder
from container.progress import view_for
from container.run import launch

_MAX_REQUESTS = 100_000


@click.command(
    epilog="Times start when a request was due. Exit code 0 when every request succeeded, 1 when one failed, 2 when the"
    " command line is wrong. The same seed gives the same prompts: change it for a server with a prefix cache."
)
@click.argument("url")
@load_options(Lengths.FIXED, output_tokens=128)
@count_option("--requests", 64, "Total number of requests.", most=_MAX_REQUESTS)
@seed_option
@tokenizer_option("Folder of the served model, or its tokenizer.json; by default that of the bundled model.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Seconds to wait until the server is ready.",
)
@count_option("--warm-up", 2, "Requests sent before, and not counted.", least=0, most=_MAX_REQUESTS)
@json_option
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
    """Benchmark the server at URL: latencies and throughput.

    The load is a closed loop: each user sends its next request when the last one is answered. A request fails if its
    prompt or answer does not have exactly the expected number of tokens.
    """
    view = view_for(sys.stderr)
    require_folders(json_path)
    try:
        url = server_url(url)
        workload = Workload(input_tokens, output_tokens, requests, users, seed, Lengths(lengths))
        path = tokenizer or _bundled_tokenizer()
        loaded = load_tokenizer(path)
        measured = make_requests(workload, loaded)
        # From another seed, so that no prompt of the warm-up comes again.
        first = (
            make_requests(replace(workload, num_requests=warm_up, seed=-1 - seed), loaded) if warm_up else ()
        )
    except BenchError as error:
        raise click.UsageError(str(error)) from error

    def load(batch: Sequence[BenchRequest], title: str) -> LoadRun:
        return run_with_progress(url, DIALECTS[dialect], batch, users, timeout, view, title)

    view.say(f"tokenizer: {path}{'' if tokenizer else f', of the bundled model {BUNDLED_MODEL}'}")
    try:
        wait_ready(url, wait, view.say)
        # If a request of the warm-up fails, the others would fail too.
        if first and (errors := figures(load(first, f"warm-up, {warm_up} requests"), first).errors):
            raise BenchError(f"{url}: the warm-up failed: {errors[0].text}")
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    run = load(measured, f"{requests} requests of {users} users")
    report = BenchReport(url, dialect, workload, str(path), warm_up, figures(run, measured))
    console = console_for(json_path)
    report.table().print_to(console)
    for text, style in report.lines():
        console.print(Text(text, style=style), soft_wrap=True)  # paths in them are there to be copied
    write_json(report.json_values(), json_path)
    sys.exit(1 if report.figures.num_errors else 0)


def _bundled_tokenizer() -> Path:
    folder = bundled_folder(launch.cache_dir(launch.environment()))
    if not folder.is_dir():
        raise BenchError(
            "--tokenizer: not given, and the bundled model is not prepared (run lmi prepare); "
            "allowed: the folder of the served model, or its tokenizer.json"
        )
    return folder
