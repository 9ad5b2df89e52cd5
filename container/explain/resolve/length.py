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

    name, requested, context = "option.max_model_len", options.max_model_len, model.default_sequence
    if requested is not None:
        if requested > (longest := model.longest_sequence):
            raise CannotServe(f"{name}={requested} exceeds the model's context length of {longest} tokens")
        if not fits(requested):
            raise CannotServe(
                f"{name}={requested} exceeds the {capacity} tokens that the KV cache holds; lower it, or set a larger"
                " option.kv_cache_gb"
            )
        return requested
    if capacity is None or fits(context):
        return decisions.record(name, context, context_origin(context, model.max_position_embeddings))
    decisions.notes.append(
        f"{name} is reduced from the model's {context} to {capacity}, the tokens that the KV cache holds; to raise it,"
        " set a larger option.kv_cache_gb"
    )
    return decisions.record(name, capacity, f"KV cache capacity; the model's context length is {context}")


def context_origin(context: int, trained: int) -> str:
    """Explain a default of `option.max_model_len`. trained: without rotary scaling and model_max_length."""
    return "the model's context length" + (f", extended from {trained}" if context != trained else "")
