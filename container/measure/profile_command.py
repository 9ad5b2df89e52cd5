"""`lmi profile`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from container.explain.resolve import CannotServe, resolve
from container.machine import detect
from container.measure.output import json_option, show, write_json
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.progress import view_for
from container.run import launch
from container.run.launch import RuntimePaths
from container.run.runtime_folder import runtime_folder
from engines.config import MpiEngineConfig
from lmi_server.properties import loader
from lmi_server.properties.problems import PropertiesError

_MOST_SEQS, _MOST_KEYS = 4096, 1 << 20
_CHUNK = 256


@click.command("profile")
@click.argument("path")
@click.option(
    "--sequences",
    type=click.IntRange(1, _MOST_SEQS),
    default=32,
    show_default=True,
    help="Of the larger decode step.",
)
@click.option(
    "--context",
    type=click.IntRange(1, _MOST_KEYS),
    default=160,
    show_default=True,
    help="Tokens of each sequence so far.",
)
@click.option(
    "--repeats", type=click.IntRange(3, 1000), default=20, show_default=True, help="Steps of each shape."
)
@json_option
def profile(path: str, sequences: int, context: int, repeats: int, json_path: Path | None) -> None:
    """Show where the time of a step goes, by part: a decode step of one sequence and of many, and a chunk of a prompt.

    PATH is a folder with a serving.properties of engine=MPI, or such a file. The model is loaded on one rank on this
    machine's CPU; no server is started. The numbers of other programs' work are in them: leave the machine alone.
    """
    try:
        config = _engine_config(path, sequences)
    except (PropertiesError, CannotServe, ModelNotAvailable) as error:
        raise click.ClickException(str(error)) from error
    context = min(context, config.model.max_model_len)
    chunk = min(_CHUNK, config.scheduler.settings.max_num_batched_tokens, config.model.max_model_len)
    shapes = [(1, 1, context), (sequences, 1, context), (1, chunk, chunk)]
    found = _run(config, shapes, repeats)
    names = ["one sequence", f"{sequences} sequences", f"chunk of {chunk}"]
    parts = sorted(found[1]["parts"], key=lambda part: -found[1]["parts"][part])
    rows = [[part, *(f"{each['parts'][part]:.2f}" for each in found)] for part in parts]
    rows = [row for row in rows if any(float(cell) > 0 for cell in row[1:])]
    rows.append(["whole step", *(f"{each['total']:.2f}" for each in found)])
    kernels = detect(launch.environment()).cpu_kernels or "torch"
    show(
        f"milliseconds a step, median of {repeats}; context {context}; CPU kernels: {kernels},"
        f" {config.parallel.threads_per_rank} thread(s), weights {_weights(config)}",
        ("part", *names),
        rows,
        ["python: laying steps out, and everything that is no native operation."],
        json_path,
    )
    write_json({"kernels": kernels, "steps": found}, json_path)


def _weights(config: MpiEngineConfig) -> str:
    return config.model.quantize if config.model.quantize != "none" else config.model.dtype


def _engine_config(path: str, sequences: int) -> MpiEngineConfig:
    """Raises CannotServe: not engine=MPI on one rank of a CPU."""
    environ = launch.environment()
    loaded = loader.load(Path(path), environ, lenient=False)
    model_path = model_files.obtain(loaded.config.source, view_for(sys.stderr))
    config = resolve(loaded.config, model_path, detect(environ)).config
    if not isinstance(config, MpiEngineConfig) or config.parallel.device != "cpu":
        raise CannotServe("lmi profile takes engine=MPI on a CPU")
    settings = config.scheduler.settings
    larger = dataclasses.replace(
        settings,
        max_num_seqs=max(sequences, settings.max_num_seqs),
        max_num_batched_tokens=max(sequences, settings.max_num_batched_tokens),
    )
    return dataclasses.replace(
        config,
        parallel=dataclasses.replace(config.parallel, tp_size=1),
        scheduler=dataclasses.replace(config.scheduler, settings=larger),
    )


def _run(config: MpiEngineConfig, shapes: list[tuple[int, int, int]], repeats: int) -> list[dict[str, Any]]:
    with runtime_folder() as folder:
        paths = RuntimePaths(folder)
        paths.engine_config.write_text(config.to_json(), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "engines.mpi.runner.profile", "--config", str(paths.engine_config)),
            *("--shapes", " ".join(",".join(map(str, shape)) for shape in shapes), "--repeats", str(repeats)),
        ]
        environment = launch.engine_environment(launch.environment(), config, paths)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException("the engine ended with an error, which is above")
    return [json.loads(line) for line in done.stdout.splitlines()]
