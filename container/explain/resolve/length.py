"""Maximum sequence length under engine=MPI: limited by the model and by the KV cache."""

from __future__ import annotations

from container.explain.resolve.decisions import CannotServe, Decisions
from engines.config import CacheConfig
from engines.core import SchedulerSettings
from engines.models.config import ModelConfig
from engines.mpi.cache.window import request_blocks
from engines.mpi.runner.largest_step import LargestStep
from lmi_server.config import EngineOptions


def max_model_len(
    options: EngineOptions,
    model: ModelConfig,
    cache: CacheConfig,
    capacity: int | None,
    settings: SchedulerSettings,
    decisions: Decisions,
) -> int:
    """Resolve `option.max_model_len`. capacity: of the KV cache in tokens, None if unknown. Raises CannotServe."""

    def fits(length: int) -> bool:
        step = LargestStep.of(settings, length).num_tokens
        blocks = request_blocks(length, cache, model.window, step)
        return capacity is None or blocks * cache.block_size <= capacity

    name, trained, requested = "option.max_model_len", model.max_position_embeddings, options.max_model_len
    if requested is not None:
        if requested > (longest := model.longest_sequence):
            raise CannotServe(f"{name}={requested} exceeds the model's context length of {longest} tokens")
        if not fits(requested):
            raise CannotServe(
                f"{name}={requested} exceeds the {capacity} tokens that the KV cache holds; lower it, or set a larger"
                " option.kv_cache_gb"
            )
        return requested
    if capacity is None or fits(trained):
        return decisions.record(name, trained, "the model's context length")
    decisions.notes.append(
        f"{name} is reduced from the model's {trained} to {capacity}, the tokens that the KV cache holds; to raise it,"
        " set a larger option.kv_cache_gb"
    )
    return decisions.record(name, capacity, f"KV cache capacity; the model's context length is {trained}")
