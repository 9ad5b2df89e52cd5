"""Resolve the options of engine=MPI: ranks, KV cache, limits of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from container.explain.resolve import weights
from container.explain.resolve.decisions import CannotServe, Decisions
from container.explain.resolve.length import max_model_len
from container.explain.target import this_machine
from container.machine import THIS_MACHINE, Machine
from container.models.files.s3.source import BYTE_RANGES
from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings
from engines.models.architectures import ARCHITECTURES, read_config
from engines.models.config import ModelConfig, UnsupportedModel
from engines.models.config.fields import class_name
from engines.models.config.selection import with_architecture
from engines.models.transformers_backend.description import TransformersModelConfig, describe
from engines.models.transformers_backend.sources import generates
from lmi_server.config import EngineOptions, LmiConfig

_GIB = 1024**3
_RANKS_PER_CORE = 2
_MIN_RANKS = 4
"""Ranks allowed on any machine, even if they are slow."""
_MAX_GPU_HEAD_DIM = 256
"""Maximum for the attention kernels, which also take the halves of a head separately."""


def max_ranks(machine: Machine) -> int:
    """Return the maximum number of ranks on a CPU. Ranks busy-wait for each other."""
    return max(_MIN_RANKS, machine.cpu_count * _RANKS_PER_CORE)


def obstacles(options: EngineOptions, machine: Machine) -> Iterator[str]:
    """Yield the reasons why `machine` cannot serve these options, without looking at the model's files."""
    degree, name = options.tensor_parallel_degree, "option.tensor_parallel_degree"
    ranks = max_ranks(machine)
    if isinstance(degree, int) and machine.gpu_count and degree > machine.gpu_count:
        yield f"{name}={degree} needs {degree} GPUs; {machine.name} has {machine.gpu_count}"
    if isinstance(degree, int) and not machine.gpu_count and degree > ranks:
        hint = "; in Docker, add --gpus all" if machine.name == THIS_MACHINE else ""
        yield (
            f"{name}={degree} needs {degree} GPUs; {machine.name} has none, and its {machine.cpu_count} core(s) can run"
            f" at most {ranks} ranks, which busy-wait for each other{hint}"
        )
    kv_gb, free = options.kv_cache_gb, machine.memory_available_bytes
    if kv_gb is not None and not machine.gpu_count and kv_gb * _GIB > free:
        yield f"option.kv_cache_gb={kv_gb:g} exceeds the free memory, {free / _GIB:.1f} GiB"


def resolve(
    config: LmiConfig, model_path: Path, machine: Machine, decisions: Decisions
) -> tuple[MpiEngineConfig, int | None]:
    """Return the engine's configuration and its KV cache's capacity in tokens, if known. Raises CannotServe."""
    model = _describe(config, model_path, decisions)
    if config.source.load_format != "dummy":
        weights.require_safetensors(model_path)
    uses_transformers = isinstance(model, TransformersModelConfig)
    if config.source.trust_remote_code:
        decisions.notes.append(
            f"option.trust_remote_code=true: {model.architecture} is built in, so remote code is not used"
        )
    options = config.options
    device = "cuda" if machine.gpu_count else "cpu"
    degree = _degree(options, model, machine, decisions)
    _require_native(options, device, machine)
    if device == "cuda" and (model.head_dim % 2 or model.head_dim > _MAX_GPU_HEAD_DIM):
        raise CannotServe(
            f"head_dim is {model.head_dim}; attention on a GPU supports even numbers up to {_MAX_GPU_HEAD_DIM}"
        )
    checkpoint = _checkpoint_dtype(config, model_path, model)
    dtype = weights.dtype(options.dtype, checkpoint, device, decisions, this_machine(machine).device)
    _explain_batch_invariance(options, device, machine, decisions)
    cache = _cache(options, machine, device, decisions)
    capacity = _kv_capacity(cache, model, degree, device, dtype)
    scheduler = _scheduler(options, device, decisions)
    engine = MpiEngineConfig(
        model=ModelSettings(
            path=str(model_path),
            name=config.source.model_id or str(model_path),
            dtype=dtype,
            max_model_len=max_model_len(options, model, cache, capacity, scheduler.settings, decisions),
            load_format=config.source.load_format,
            quantize=options.quantize,
            byte_ranges=BYTE_RANGES if config.source.load_format == "stream" else "",
            impl="transformers" if uses_transformers else "lmi",
        ),
        parallel=ParallelConfig(
            tp_size=degree,
            device=device,
            threads_per_rank=machine.threads(degree),
            enforce_eager=options.enforce_eager or uses_transformers,
        ),
        cache=cache,
        scheduler=scheduler,
    )
    size = weights.rank_bytes(model, engine.model, degree, machine)
    if device == "cpu":
        can_quantize = bool(machine.cpu_kernels) and options.quantize == "none"
        weights.require_free(size * degree, machine, can_quantize)
    if config.source.load_format == "dummy":
        where = f"on each of {degree} {'ranks' if device == 'cpu' else 'GPUs'}" if degree > 1 else "in memory"
        decisions.notes.append(
            "option.load_format=dummy: the weights are random, so responses are meaningless; they take"
            f" {size / _GIB:.3g} GiB {where}"
        )
    return engine, capacity


def _describe(config: LmiConfig, path: Path, decisions: Decisions) -> ModelConfig:
    """Describe the model as implemented here or by transformers, and record which. Raises CannotServe."""
    name, impl, refusal = "option.model_impl", config.options.model_impl, ""
    architecture = _architecture(path)
    unknown = architecture and architecture not in ARCHITECTURES
    for way, read in (("lmi", read_config), ("transformers", describe)):
        if impl not in ("auto", way):
            continue
        try:
            model: ModelConfig = read(path)
        except UnsupportedModel as error:
            if way == "lmi" or unknown or impl == way:
                refusal = str(error)
            continue
        if impl == "auto":
            why = f"this server does not implement {architecture}" if unknown else refusal
            decisions.record(
                name, way, f"this server implements {model.architecture}" if way == "lmi" else why
            )
        return model
    if not unknown:
        raise CannotServe(refusal)
    remote = " (option.trust_remote_code=true has no effect under engine=MPI)"
    data = weights.read_config_json(path)
    served = generates(architecture, data) or data.get("auto_map")
    advice = "; engine=Python with option.rolling_batch=disable serves it with transformers" if served else ""
    raise CannotServe(
        f"engine=MPI does not support the architecture {architecture}"
        f"{remote if config.source.trust_remote_code else ''}: {refusal}{advice}"
    )


def _checkpoint_dtype(config: LmiConfig, path: Path, model: ModelConfig) -> str:
    if config.source.load_format == "dummy":
        return model.dtype
    return weights.checkpoint_dtype(path, weights.read_config_json(path))


def _architecture(path: Path) -> str:
    """Return the architecture in config.json; empty if it cannot be read, which `read_config` reports later."""
    try:
        return class_name(str(with_architecture(weights.read_config_json(path))["architectures"][0]))
    except (CannotServe, LookupError, TypeError):
        return ""


def _degree(options: EngineOptions, model: ModelConfig, machine: Machine, decisions: Decisions) -> int:
    name, heads = "option.tensor_parallel_degree", model.num_kv_heads
    requested = options.tensor_parallel_degree
    alone = model.one_rank_only if isinstance(model, TransformersModelConfig) else ""
    if alone and isinstance(requested, int) and requested > 1:
        raise CannotServe(f"{name}={requested}: {model.architecture} runs on one rank only: {alone}")
    if isinstance(requested, int):
        most = model.num_heads
        if requested > most:
            raise CannotServe(
                f"{name}={requested} exceeds the model's {most} attention heads; allowed: at most {most}"
            )
        if requested > heads:
            decisions.notes.append(
                f"{requested} ranks share {heads} KV heads: some are stored on several ranks"
            )
        if not machine.gpu_count and requested > machine.cpu_count:
            decisions.notes.append(f"{requested} ranks on {machine.cpu_count} cores: correct, but slow")
        return requested
    if not machine.gpu_count:
        return decisions.record(name, 1, "there is no GPU")
    if alone:
        return decisions.record(name, 1, alone)
    degree = min(machine.gpu_count, heads)
    limit = (
        f"the model has {heads} KV head{'' if heads == 1 else 's'}, and there are {machine.gpu_count} GPUs"
    )
    return decisions.record(name, degree, "all GPUs" if degree == machine.gpu_count else limit)


def _require_native(options: EngineOptions, device: str, machine: Machine) -> None:
    """Raise CannotServe for options that need native CPU kernels, if those are not used."""
    for name, value, usual in (
        ("option.quantize", options.quantize, ("none",)),
        ("option.kv_cache_dtype", options.kv_cache_dtype, ("auto", "fp32" if device == "cpu" else "")),
    ):
        if value in usual:
            continue
        if device != "cpu":
            raise CannotServe(f"{name}={value}: supported only on CPUs, but the model is served on a GPU")
        if not machine.cpu_kernels:
            raise CannotServe(
                f"{name}={value}: needs the native CPU kernels, which are not built or do not support this processor;"
                " `make -B install` builds them if there is a C++ compiler"
            )


def _explain_batch_invariance(
    options: EngineOptions, device: str, machine: Machine, decisions: Decisions
) -> None:
    if not options.batch_invariant:
        return
    if device != "cpu":
        raise CannotServe(
            "option.batch_invariant=true: supported only on CPUs; on a GPU results depend on the batch"
        )
    why = "native CPU kernels are always batch-invariant"
    if not machine.cpu_kernels:
        why = "it needs the native CPU kernels, which are not built or do not support this processor"
    decisions.notes.append(f"option.batch_invariant=true has no effect: {why}")


def _cache(options: EngineOptions, machine: Machine, device: str, decisions: Decisions) -> CacheConfig:
    paged, name = options.paged_attention, "option.kv_cache_gb"
    kv_bytes = None
    if options.kv_cache_gb is not None:
        kv_bytes = int(options.kv_cache_gb * _GIB)
    elif device == "cpu":
        kv_bytes = min(4 * _GIB, machine.memory_available_bytes // 4)
        free = machine.memory_available_bytes / _GIB
        why = f"the smaller of 4 and a quarter of the {free:.1f} GiB that are free"
        decisions.record(name, f"{kv_bytes / _GIB:.3g}", why)
    else:
        decisions.record(
            name, "", "the memory that option.gpu_memory_utilization leaves after loading the weights"
        )
    prefix_caching = options.enable_prefix_caching
    if prefix_caching is None:
        prefix_caching = decisions.record("option.enable_prefix_caching", paged, _paging(options))
    return CacheConfig(
        block_size=options.block_size,
        paged=paged,
        dtype=options.kv_cache_dtype,
        prefix_caching=prefix_caching,
        kv_cache_bytes=kv_bytes,
        gpu_memory_utilization=options.gpu_memory_utilization,
    )


def _paging(options: EngineOptions) -> str:
    return "attention is paged" if options.paged_attention else "attention is not paged"


def _kv_capacity(cache: CacheConfig, model: ModelConfig, degree: int, device: str, dtype: str) -> int | None:
    """Return the capacity in tokens, in whole blocks; None if unknown. Raises CannotServe."""
    if cache.kv_cache_bytes is None:
        return None
    bytes_per_token = model.kv_bytes_per_token(cache.stored_dtype(device, dtype), degree)
    tokens = cache.kv_cache_bytes // (bytes_per_token * cache.block_size) * cache.block_size
    if tokens == 0:
        raise CannotServe(
            f"the KV cache of {cache.kv_cache_bytes} bytes is smaller than one block of {cache.block_size} tokens"
            f" ({bytes_per_token * cache.block_size} bytes); set a larger option.kv_cache_gb"
        )
    return tokens


def _scheduler(options: EngineOptions, device: str, decisions: Decisions) -> SchedulerConfig:
    prefill, total = _budgets(options, device, decisions)
    policy = options.batch_scheduler_policy
    if policy is None:
        policy = "max_utilization" if options.paged_attention else "guaranteed_no_evict"
        decisions.record("option.batch_scheduler_policy", policy, _paging(options))
    return SchedulerConfig(
        settings=SchedulerSettings(
            max_num_seqs=options.max_rolling_batch_size,
            max_prefill_tokens=prefill,
            max_num_batched_tokens=total,
            max_waiting=options.job_queue_size,
            max_queued_tokens=options.max_queued_tokens,
            scheduling_policy=options.scheduling_policy,
            chunked_prefill=options.enable_chunked_prefill,
            waiting_served_ratio=options.waiting_served_ratio,
            max_waiting_tokens=options.max_waiting_tokens,
            waiting_steps=options.waiting_steps,
        ),
        batch_scheduler_policy=policy,
        step_trace=_step_trace(options),
    )


def _budgets(options: EngineOptions, device: str, decisions: Decisions) -> tuple[int, int]:
    """Return the limits of a step: prompt tokens, and all tokens."""
    prefill_name, total_name = "option.max_rolling_batch_prefill_tokens", "option.max_num_batched_tokens"
    default, where = (256, "on a CPU") if device == "cpu" else (2048, "on a GPU")
    own_prefill, own_total = options.max_rolling_batch_prefill_tokens, options.max_num_batched_tokens
    prefill = own_prefill or decisions.record(
        prefill_name, own_total or default, f"as {total_name}" if own_total else where
    )
    total = own_total or decisions.record(
        total_name, own_prefill or default, f"as {prefill_name}" if own_prefill else where
    )
    if total < options.max_rolling_batch_size:
        effect = "in a full batch, only some sequences get a token in each step"
        if options.enable_chunked_prefill:
            effect = f"at most {total} sequences run at once"
        decisions.notes.append(
            f"{total_name} is {total}, less than option.max_rolling_batch_size={options.max_rolling_batch_size}:"
            f" {effect}"
        )
    return prefill, total


def _step_trace(options: EngineOptions) -> str:
    """Return the absolute path. Raises CannotServe if it is no .jsonl file or its folder does not exist."""
    if options.step_trace is None:
        return ""
    path = Path(options.step_trace).absolute()
    if path.suffix != ".jsonl" or not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise CannotServe(
            f"option.step_trace: not a trace file (got {options.step_trace}); allowed: a name ending in .jsonl, in an"
            " existing folder"
        )
    return str(path)
