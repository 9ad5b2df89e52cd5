"""`lmi check PATH`: explain a configuration, its effective values, and whether this or named hardware can serve it.

Opens no connection and does not import torch. `lmi serve` agrees with the output, because both read the configuration
with `lmi_server.properties.loader` and resolve it with `container.explain.resolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from container.explain.hardware import image_obstacle
from container.explain.lines import decided, explain_lines
from container.explain.prediction.memory import predict_dynamic, predict_rolling, read_model
from container.explain.prediction.startup import platform_advice, predict_start
from container.explain.report import CheckReport
from container.explain.resolve import CannotServe, Resolved, missing_modules, obstacles, resolve
from container.explain.resolve.weights import count_parameters
from container.explain.target import ServingTarget
from container.machine import Machine
from container.models import files as model_files
from container.models import tokenizer_files
from container.models.errors import ModelNotAvailable
from container.models.files.bundled import BUNDLED_MODEL
from container.models.files.folder import folder_problem, weights_problem
from container.run.launch import remote_code_allowed
from engines.config import EngineConfig, MpiEngineConfig, PythonEngineConfig
from lmi_server.config import LmiConfig, ModelSource
from lmi_server.properties.loader import examine

_MAX_DIFFERENCE = 1.5
"""Accepted ratio between parameter counts of files and config.json. Some tensors are stored twice or unused."""
Locate = Callable[[ModelSource], Path | None]


def without_weights(source: ModelSource) -> ModelSource:
    """Return the source without the content of its weights. From S3 the weight headers are kept, read as ranges."""
    in_s3 = (source.model_id or "").startswith("s3://")
    return replace(source, load_format="stream" if in_s3 else "dummy")


def described_in_cache(source: ModelSource) -> Path | None:
    """Return the cached copy without weights, or None."""
    return model_files.locate(without_weights(source)) if model_files.is_fetched(source) else None


def check(
    path: Path,
    environ: Mapping[str, str],
    target: ServingTarget,
    locate: Locate = model_files.locate,
    *,
    lenient: bool = False,
    allow_remote_code: bool = False,
    describe: Locate = described_in_cache,
    length: int | None = None,
    source: ModelSource | None = None,
) -> CheckReport:
    """Examine `path`, a serving.properties or its folder, for a target.

    allow_remote_code: allow code that comes with the model, as LMI_ALLOW_REMOTE_CODE=true in `environ` does.
    locate: finds a model's files on this disk; cheap, and opens no connection.
    describe: finds config.json, and possibly weight headers, of a model that is not on this disk. May raise
        ModelNotAvailable.
    length: tokens per request, to predict the number of concurrent requests; defaults to option.max_model_len.
    source: location of the model on this machine or in S3, if it is not that of the configuration.
    """
    found = examine(path, environ, lenient)
    report = CheckReport(
        path=str(found.file if found.file.exists() else path),
        target=target.machine.name,
        machine=target.description,
        problems=tuple(map(str, found.problems)),
        warnings=tuple(found.warnings),
        notes=tuple(found.notes),
        named=target.named,
    )
    plan = None
    if found.loaded is None:
        count = len(found.problems)
        report.reasons = (f"the configuration has {count} problem{'s' if count > 1 else ''}",)
    else:
        config = found.loaded.config
        config = replace(config, source=source or config.source)
        allowed = allow_remote_code or remote_code_allowed(environ)
        try:
            plan = _check_model(report, config, locate, describe, target, allowed, length)
        except OSError as error:
            report.unreadable = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            report.reasons += (report.unreadable,)
        # The head of the report names the folder, so sources are relative to it.
        report.values = tuple(
            decided(replace(value, source=value.source.removeprefix(f"{found.folder}/")), plan)
            for value in found.loaded.values
        )
    report.lines = tuple(explain_lines(found, plan))
    return report


def _check_model(
    report: CheckReport,
    config: LmiConfig,
    locate: Locate,
    describe: Locate,
    target: ServingTarget,
    allow_remote_code: bool,
    length: int | None,
) -> Resolved | None:
    """Resolve the configuration for its model, predict what it needs, and judge the target."""
    folder = locate(config.source) if config.handler is None else None
    config_folder = folder
    if folder is None and config.handler is None:
        try:
            config_folder = describe(config.source)
        except ModelNotAvailable as error:
            report.unreadable = report.unknown = str(error)
    plan = _decide(report, config, folder, config_folder, target.machine, allow_remote_code)
    if config_folder is not None and plan is not None:
        _predict(report, plan.config, config, config_folder, target.divided(plan.copies), length)
    _judge(report, plan, config, folder, config_folder, target)
    return plan


def _decide(
    report: CheckReport,
    config: LmiConfig,
    folder: Path | None,
    config_folder: Path | None,
    machine: Machine,
    allow_remote_code: bool,
) -> Resolved | None:
    """Resolve the configuration, even without weights, and report why it cannot be served.

    folder: contains the whole model. config_folder: contains at least config.json, and may be another folder.
    """
    resolved, reasons = _resolve(config, folder, config_folder, machine, allow_remote_code)
    report.reasons += reasons
    report.notes += _notes(resolved, config, machine)
    if config.handler is None:
        report.model, refusal = _model(config.source, folder)
        report.reasons += (refusal,) if refusal else ()
    if folder is not None and (note := tokenizer_files.note(folder, config.source.load_format)):
        report.notes += (note,)
    if resolved is None and config_folder is not None:
        resolved, _ = _resolve(config, None, config_folder, machine, allow_remote_code)
    return resolved


def _resolve(
    config: LmiConfig,
    folder: Path | None,
    config_folder: Path | None,
    machine: Machine,
    allow_remote_code: bool,
) -> tuple[Resolved | None, tuple[str, ...]]:
    """Return the resolved configuration (None if it cannot be resolved) and the reasons why it cannot be served."""
    if folder is None and config_folder is None and config.handler is None:
        return None, obstacles(config, machine)
    if bare := folder is None and config_folder is not None and weights_problem(config_folder) is not None:
        config = replace(config, source=replace(config.source, load_format="dummy"))
    try:
        resolved = resolve(config, folder or config_folder, machine, allow_remote_code)
    except CannotServe as error:
        return None, (str(error),)
    if folder is None:
        return replace(resolved, notes=()) if bare else resolved, ()
    refusal = tokenizer_files.refusal(folder, config.source.load_format)
    return resolved, (refusal,) if refusal else ()


def _predict(
    report: CheckReport,
    engine: EngineConfig,
    config: LmiConfig,
    folder: Path,
    target: ServingTarget,
    length: int | None,
) -> None:
    model = read_model(folder)
    if model is None:
        return
    if isinstance(engine, MpiEngineConfig):
        report.memory = predict_rolling(engine, model, target, length, config.options)
    elif isinstance(engine, PythonEngineConfig):
        report.memory = predict_dynamic(engine, folder, model, target, length)
    report.start = predict_start(config, folder, model, target)
    held, described = count_parameters(folder), model.weight_bytes(1)
    if held and not 1 / _MAX_DIFFERENCE < held / described < _MAX_DIFFERENCE:
        report.warnings += (
            f"the weight files hold {held:,} parameters, but config.json describes {described:,}: they may belong to"
            " different models",
        )


def _judge(
    report: CheckReport,
    plan: Resolved | None,
    config: LmiConfig,
    folder: Path | None,
    config_folder: Path | None,
    target: ServingTarget,
) -> None:
    """Compare predicted needs with the target. On this machine a shortage only warns, since the server measures."""
    report.advice = tuple(platform_advice(config, report.start, target))
    if target.named:  # here they are reasons
        report.warnings += missing_modules(config)
    if report.memory is not None and report.memory.shortage:
        shortage = f"the model does not fit: {report.memory.shortage}"
        if target.named:
            report.reasons += (shortage,)
        else:
            report.warnings += (shortage,)
    if folder is None and config.handler is None and not (report.reasons or report.unknown):
        if config_folder is not None:
            report.notes += ("the model's files are not on this disk, so they were not checked",)
        elif model_files.is_fetched(config.source):
            report.unknown = "the model is not on this disk; --remote reads its config.json"
        else:
            report.unknown = "the model is not prepared yet; `lmi prepare` prepares it"
    device, engine = target.device, plan and plan.config
    if device is None:
        return
    if not device.compute_capability:
        report.reasons += (image_obstacle(device),)
    if isinstance(engine, MpiEngineConfig | PythonEngineConfig) and engine.model.dtype not in device.flops:
        report.warnings += (
            f"{device.name} does not support {engine.model.dtype} arithmetic; set option.dtype=fp16",
        )


def _model(source: ModelSource, folder: Path | None) -> tuple[str, str]:
    """Return where the model is, and why it is not available (empty if it is)."""
    name = source.model_id or source.model_dir
    if folder is not None:
        where = "" if str(folder) == name else f" in {folder}"
        return f"{name}: ready{where}", ""
    if model_files.is_fetched(source):
        return f"{name}: not on this disk; `lmi serve` or `lmi prepare` fetches it once", ""
    if name == BUNDLED_MODEL:
        return f"{name}: bundled with this installation; `lmi serve` or `lmi prepare` converts it once", ""
    if model_files.is_described(source):
        return f"{name}: a GGUF file; `lmi serve` or `lmi prepare` reads its metadata once", ""
    return f"{name}: not available", model_files.refusal(source) or folder_problem(source)


def _notes(resolved: Resolved | None, config: LmiConfig, machine: Machine) -> tuple[str, ...]:
    notes: tuple[str, ...] = (machine.note,) if machine.note else ()
    if resolved is None:
        degree = config.options.tensor_parallel_degree
        if config.engine == "MPI" and isinstance(degree, int) and degree > 1 and not machine.gpu_count:
            cores = f"{machine.cpu_count} core(s) of {machine.name}"
            notes += (f"without GPUs {degree} ranks would share the {cores}",)
        return notes
    notes, parallel = resolved.notes, resolved.config.parallel
    if resolved.config.engine == "MPI" and parallel.device == "cpu":
        ranks = "1 rank" if parallel.tp_size == 1 else f"{parallel.tp_size} ranks"
        why = " (OMP_NUM_THREADS)" if machine.omp_num_threads else ""
        notes += (f"{ranks} on the CPU, {parallel.threads_per_rank} thread(s) each{why}",)
    if resolved.kv_capacity_tokens is not None:
        notes += (f"the KV cache holds {resolved.kv_capacity_tokens} tokens",)
    return notes
