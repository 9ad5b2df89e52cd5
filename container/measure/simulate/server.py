"""The simulated server: a configuration, resolved for this or any other machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from container.errors import UserError
from container.explain import check as checking
from container.explain.prediction.memory import predict_dynamic, predict_rolling, read_model
from container.explain.resolve import CannotServe, resolve
from container.explain.target import ServingTarget
from container.models import files as model_files
from container.run import launch
from engines.config import HandlerEngineConfig, MpiEngineConfig, PythonEngineConfig
from engines.core import EngineInfo
from engines.models.config import ModelConfig
from lmi_server.config import LmiConfig
from lmi_server.properties import loader

_HANDLER = "user handlers cannot be simulated: the run time of their code is unknown"


class CannotSimulateError(UserError):
    """The simulation is not possible."""


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """Input of `simulate`. Variants are made with `dataclasses.replace`."""

    engine: MpiEngineConfig | PythonEngineConfig
    model: ModelConfig
    predict_timeout: float
    """Seconds after which the server ends a request."""
    num_blocks: int = 0
    """Blocks of the KV cache; 0 under engine=Python, which has none."""
    copies: int = 1
    """Number of engines on the machine, of which this is one."""
    notes: tuple[str, ...] = ()
    """Notes of `lmi check` on the configuration."""

    @property
    def kv_stored(self) -> str:
        """Dtype in which keys and values are stored."""
        engine = self.engine
        if isinstance(engine, MpiEngineConfig):
            return engine.cache.stored_dtype(engine.parallel.device, engine.model.dtype)
        return engine.model.dtype if engine.parallel.device == "cuda" else "fp32"

    @property
    def info(self) -> EngineInfo:
        """Information that the real engine would report."""
        engine, ranks = self.engine, self.engine.parallel.tp_size
        if isinstance(engine, MpiEngineConfig):
            block_size, paged = engine.cache.block_size, engine.cache.paged
            max_num_seqs = engine.scheduler.settings.max_num_seqs
        else:
            block_size, paged, max_num_seqs = 0, False, engine.batching.batch_size
        capacity = self.num_blocks * block_size
        return EngineInfo(
            model=engine.model.name,
            engine=engine.engine,
            world_size=ranks,
            device=engine.parallel.device,
            dtype=engine.model.dtype,
            kv_capacity_tokens=capacity,
            kv_capacity_bytes=capacity * self.model.kv_bytes_per_token(self.kv_stored, ranks),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=engine.model.max_model_len,
            paged_attention=paged,
        )


def read_server(path: Path, model: Path | None, target: ServingTarget) -> SimulatedServer:
    """Read a serving.properties, given by its path or folder, and call `resolve_server`.

    model: a folder with the model's config.json; None if the model is on this disk.
    Raises PropertiesError, and the errors of `resolve_server`.
    """
    config = loader.load(path, launch.environment()).config
    if config.handler is not None:
        raise CannotSimulateError(_HANDLER)
    source = config.source
    folder = model or model_files.locate(source) or checking.described_in_cache(source)
    if folder is None:
        raise CannotSimulateError(
            f"--model: required, because {source.model_id or source.model_dir} is not on this disk; allowed: a folder"
            " with its config.json, which lmi check --remote fetches"
        )
    return resolve_server(config, folder, target)


def resolve_server(config: LmiConfig, folder: Path, target: ServingTarget) -> SimulatedServer:
    """Resolve all open values as `lmi serve` would on the target, and predict the KV cache as `lmi check` does.

    folder: contains the model's config.json; weights are not needed.

    Raises:
        CannotServe: the target cannot serve the configuration.
        CannotSimulateError: the configuration cannot be simulated.
    """
    source = replace(config.source, load_format="dummy")  # weights are not needed
    resolved = resolve(replace(config, source=source), folder, target.machine)
    share = target.divided(resolved.copies)
    engine, timeout, copies = resolved.config, config.server.predict_timeout, resolved.copies
    notes = tuple(note for note in resolved.notes if "load_format" not in note)
    if copies > 1:
        notes += (
            f"only one of {copies} copies of the model is simulated; load, figures and costs are for this copy",
        )
    if isinstance(engine, HandlerEngineConfig):
        raise CannotSimulateError(_HANDLER)
    model = read_model(folder)
    if model is None:
        raise CannotSimulateError(f"{folder}: the architecture in config.json is not supported")
    if isinstance(engine, PythonEngineConfig):
        memory = predict_dynamic(engine, folder, model, share)
        if memory is not None and memory.weights > memory.available:
            raise CannotServe(memory.shortage)
        # The server would start, and may run out of memory on the longest requests.
        notes += (memory.shortage,) if memory is not None and memory.shortage else ()
        return SimulatedServer(engine, model, timeout, copies=copies, notes=notes)
    memory = predict_rolling(engine, model, share, options=config.options)
    if memory is None:
        raise CannotSimulateError("--device: required, because the memory of this machine's GPUs is unknown")
    if memory.shortage:
        raise CannotServe(memory.shortage)
    num_blocks = memory.kv_tokens // engine.cache.block_size
    return SimulatedServer(engine, model, timeout, num_blocks, copies, notes)
