"""The command `python -m tests.bench`, run by `make bench` and `make bench-peers`."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from container.machine import detect, versions
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.workload import BenchError, load_tokenizer
from container.measure.compare.configurations import (
    BadConfiguration,
    Configuration,
    NamedPath,
    names_for,
    preparer,
    read_configurations,
)
from container.progress import view_for
from container.run import launch
from container.run.stop_signals import StopRequested, StopSignals
from tests.bench import environment, limits, quiet, report
from tests.bench.contender import Broken, Contender, Unavailable
from tests.bench.http_contender import Ours
from tests.bench.machine import described
from tests.bench.model import read_matrices
from tests.bench.peers import PEERS
from tests.bench.peers.peer import Site
from tests.bench.results import Results, write_json
from tests.bench.rounds import Rounds
from tests.bench.workloads import DEFAULT, SHAPES

_ROOT = Path(__file__).parents[2]
OURS = (_ROOT / "tests/bench/properties/fp32",)
TRANSFORMERS = ("transformers-static-32", "transformers-static-4", "transformers-continuous")
_QUIET_SECONDS = 60.0
"""Longest wait for a quiet machine. What a stopped contender leaves behind is gone long before."""
_TABLE_WIDTH = 160


def _split_words(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """Split a list of words at commas and spaces."""
    return tuple(text.replace(",", " ").split())


def _require_known(names: Sequence[str], known: Mapping[str, object], option: str) -> None:
    for name in names:
        if name not in known:
            raise click.UsageError(f"{option}: unknown name (got {name}); allowed: {', '.join(known)}")


@click.command()
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--workloads", callback=_split_words, default=" ".join(DEFAULT), show_default=True)
@click.option(
    "--ours",
    callback=_split_words,
    default=" ".join(map(str, OURS)),
    help="Properties folders. Ratios compare the first one with all others.",
)
@click.option(
    "--dialect",
    type=click.Choice([*DIALECTS]),
    default="openai",
    show_default=True,
    help="API of our servers. Peers with a server use openai. With lmi, responses have log-probabilities.",
)
@click.option("--peers", callback=_split_words, default=" ".join(TRANSFORMERS), show_default=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("build"),
    help="Folder for peers, logs and results.",
)
@click.option(
    "--busy-ok", is_flag=True, help="Measure even if other processes use the CPU; the report says so."
)
@click.option(
    "--prepare-only", is_flag=True, help="Only install and convert what is missing; measure nothing."
)
def main(**options: Any) -> None:
    """Benchmark this server and other engines in turn, under the same load.

    Exits with 0 if every request of every contender got a correct response, else with 1.
    """
    try:
        with StopSignals() as signals:
            code = _run(**options)
            signals.raising = False
    except StopRequested:
        _say("stopped")
        code = 130
    except (BadConfiguration, BenchError, Broken, quiet.Busy) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


def _say(text: str) -> None:
    click.echo(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S} {text}", err=True)


def _run(
    rounds: int,
    workloads: tuple[str, ...],
    ours: tuple[str, ...],
    dialect: str,
    peers: tuple[str, ...],
    folder: Path,
    busy_ok: bool,
    prepare_only: bool,
) -> int:
    _require_known(workloads, SHAPES, "--workloads")
    _require_known(peers, PEERS, "--peers")
    configs = _read_configurations([Path(folder) for folder in ours])
    model = configs[0].model_folder
    contenders, unavailable = _prepare_contenders(configs, dialect, peers, model, folder / "peers")
    if prepare_only:
        for name, reason in unavailable.items():
            _say(f"{name} is not available: {reason}")
        return 1 if unavailable else 0
    when = datetime.datetime.now(datetime.UTC)
    logs = folder / "bench" / f"{when:%Y%m%d-%H%M%S}"
    logs.mkdir(parents=True)
    benchmark = Rounds(
        contenders=contenders,
        shapes=[SHAPES[name] for name in workloads],
        num_rounds=rounds,
        tokenizer=load_tokenizer(model),
        matrices=read_matrices(model),
        logs=logs,
        quiet=quiet.look if busy_ok else lambda: quiet.await_quiet(_QUIET_SECONDS),
        measure_limits=lambda: _measure_limits(folder / "bench"),
        say=_say,
    )
    warnings = (
        ["Measured with --busy-ok: other processes may have used the CPU. Do not publish."] if busy_ok else []
    )
    try:
        benchmark.run()
    except (Broken, quiet.Busy) as error:
        if not benchmark.lives:
            raise
        warnings.append(f"Stopped early: {error}")
    results = Results(
        command=shlex.join(["python", "-m", "tests.bench", *sys.argv[1:]]),
        when=f"{when:%Y-%m-%d %H:%M} UTC",
        machine=described(),
        model=str(model),
        workloads={name: SHAPES[name].describe() for name in workloads},
        num_rounds=rounds,
        contenders={name: contender.facts for name, contender in contenders.items()},
        unavailable={**unavailable, **benchmark.broken},
        limits=benchmark.limits,
        runs=benchmark.runs(),
        lives=tuple(benchmark.lives),
        warnings=tuple(warnings),
    )
    write_json(results, logs / "results.json")
    _print(results)
    _say(f"all figures: {logs / 'results.json'}; logs in the same folder")
    return 1 if results.num_failed or benchmark.broken or len(warnings) > busy_ok else 0


def _read_configurations(ours: Sequence[Path]) -> tuple[Configuration, ...]:
    """Read the configurations of the properties folders. Raises: BadConfiguration."""
    if not ours:
        raise click.UsageError("--ours: at least one properties folder is required")
    environ = launch.environment()
    named = [
        NamedPath(f"ours-{name}", path) for name, path in zip(names_for([*map(str, ours)]), ours, strict=True)
    ]
    view = view_for(sys.stderr)
    try:
        return read_configurations(named, environ, detect(environ), preparer(environ, view))
    finally:
        view.finish()


def _prepare_contenders(
    configs: Sequence[Configuration], dialect: str, peers: Sequence[str], model: Path, folder: Path
) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return the contenders by name, ours first, and the reasons why peers are unavailable."""
    environ = environment.own_threads(launch.without_admin_token(launch.environment()))
    contenders: dict[str, Contender] = {
        config.name: Ours(config, versions(), environ, dialect) for config in configs
    }
    unavailable: dict[str, str] = {}
    for name in peers:
        peer = PEERS[name]
        try:
            contenders[name] = peer.prepare(Site(model, (folder / peer.family).absolute(), _say))
        except Unavailable as error:
            unavailable[name] = str(error)
            _say(f"{name} is not available: {error}")
    return contenders, unavailable


def _measure_limits(folder: Path) -> limits.Limits | None:
    try:
        return limits.measure(folder)
    except limits.NoLimits as error:
        _say(f"limits were not measured: {error}")
        return None


def _print(results: Results) -> None:
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_TABLE_WIDTH)
    for table in report.tables(results):
        table.print_to(console)
    for sentence in report.notes(results):
        click.echo(f"- {sentence}")


if __name__ == "__main__":
    main()
