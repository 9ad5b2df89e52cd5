"""The `lmi profile` command."""

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
from container.measure.bench.options import count_option
from container.measure.output import Table, json_option, publish
from container.models import files as model_files
from container.progress import view_for
from container.run import launch, mpi
from container.run.launch import RuntimePaths
from container.run.processes import bound
from container.run.runtime_folder import runtime_folder
from engines.config import MpiEngineConfig
from lmi_server.properties import loader

_MAX_SEQUENCES = 4096
_CHUNK = 256


@click.command("profile")
@click.argument("path")
@count_option("--sequences", 32, "Number of sequences in the larger decode step.", most=_MAX_SEQUENCES)
@count_option("--context", 160, "Context length of each sequence.", most=1 << 20)
@count_option("--repeats", 20, "Number of steps per shape.", least=3, most=1000)
@json_option
def profile(path: str, sequences: int, context: int, repeats: int, json_path: Path | None) -> None:
    """Show where the time of a step goes, by part.

    Measures decode steps of one and of many sequences, and a chunk of a prompt. PATH is a serving.properties file of
    engine=MPI or a folder that contains one. The model is loaded on this machine's CPU; no server is started. With
    several ranks, the times are rank 0's. Stop other programs while it runs: they distort the results.
    """
    config, capacity = _engine_config(path, sequences)
    context = min(context, config.model.max_model_len)
    _require_capacity(capacity, sequences, context, config.cache.block_size)
    chunk = min(_CHUNK, config.scheduler.settings.max_num_batched_tokens, config.model.max_model_len)
    steps = _run(config, [(1, 1, context), (sequences, 1, context), (1, chunk, chunk)], repeats)
    parts = sorted(steps[1]["parts"], key=lambda part: -steps[1]["parts"][part])
    rows = [(part, *(f"{step['parts'][part]:.2f}" for step in steps)) for part in parts]
    rows = [row for row in rows if any(float(cell) > 0 for cell in row[1:])]
    rows.append(("whole step", *(f"{step['total']:.2f}" for step in steps)))
    kernels = detect(launch.environment()).cpu_kernels or "torch"
    weights = config.model.quantize if config.model.quantize != "none" else config.model.dtype
    title = (
        f"milliseconds per step, median of {repeats}; context {context}; CPU kernels: {kernels},"
        f" {config.parallel.tp_size} rank(s) with {config.parallel.threads_per_rank} thread(s), weights {weights}"
    )
    header = ("part", "one sequence", f"{sequences} sequences", f"chunk of {chunk}")
    notes = ["python: time outside native operations, including preparing the step."]
    if config.parallel.tp_size > 1:
        notes.append("all_reduce and python include waiting for the other ranks.")
    publish([Table(title, header, tuple(rows))], notes, {"kernels": kernels, "steps": steps}, json_path)


def _engine_config(path: str, sequences: int) -> tuple[MpiEngineConfig, int | None]:
    """Resolve the engine's configuration for one copy of the model, and its KV cache's capacity in tokens.

    Raises CannotServe unless it is engine=MPI on a CPU.
    """
    environ = launch.environment()
    loaded = loader.load(Path(path), environ, lenient=False)
    model_path = model_files.obtain(loaded.config.source, view_for(sys.stderr))
    one_copy = dataclasses.replace(loaded.config.options, data_parallel_size=1)
    resolved = resolve(dataclasses.replace(loaded.config, options=one_copy), model_path, detect(environ))
    config = resolved.config
    if not isinstance(config, MpiEngineConfig):
        raise CannotServe("engine=Python cannot be profiled; set engine=MPI")
    if config.parallel.device != "cpu":
        raise CannotServe("this machine has a GPU; set CUDA_VISIBLE_DEVICES= to profile on the CPU")
    settings = config.scheduler.settings
    larger = dataclasses.replace(
        settings,
        max_num_seqs=max(sequences, settings.max_num_seqs),
        max_num_batched_tokens=max(sequences, settings.max_num_batched_tokens),
    )
    scheduler = dataclasses.replace(config.scheduler, settings=larger)
    return dataclasses.replace(config, scheduler=scheduler), resolved.kv_capacity_tokens


def _require_capacity(capacity: int | None, sequences: int, context: int, block_size: int) -> None:
    """Raise CannotServe if the sequences, each in whole blocks, exceed the KV cache's capacity in tokens."""
    tokens = sequences * -(-context // block_size) * block_size
    if capacity is not None and tokens > capacity:
        raise CannotServe(
            f"--sequences: {sequences} sequences of {context} tokens exceed the KV cache (got {tokens} tokens);"
            f" allowed: at most {capacity}; lower --sequences or --context, or set a larger option.kv_cache_gb"
        )


def _run(config: MpiEngineConfig, shapes: list[tuple[int, int, int]], repeats: int) -> list[dict[str, Any]]:
    with runtime_folder() as folder:
        paths = RuntimePaths(folder)
        paths.engine_config.write_text(config.to_json(), encoding="utf-8")
        command = [
            *(sys.executable, "-P", "-m", "engines.mpi.runner.profile", "--config", str(paths.engine_config)),
            *("--shapes", " ".join(",".join(map(str, shape)) for shape in shapes), "--repeats", str(repeats)),
        ]
        environ = launch.environment()
        environment = launch.engine_environment(environ, config, paths)
        if config.parallel.tp_size > 1:
            mpirun = mpi.mpirun_for(environ)
            command, environment = launch.on_ranks(mpirun, config.parallel.tp_size, command, environment)
        done = subprocess.run(bound(command), env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException("the engine failed; its error is above")
    return [json.loads(line) for line in done.stdout.splitlines()]
