"""Predict the memory of weights, largest step and KV cache, and the number of concurrent requests.

Weights and KV cache are computed with the engine's own code. The largest step is an estimate; the engine measures it
when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from container.explain.resolve import weights
from container.explain.resolve.copies import fewer_copies
from container.explain.target import ServingTarget
from engines.config import MpiEngineConfig, PythonEngineConfig
from engines.models.architectures import read_config
from engines.models.config import ModelConfig, UnsupportedModel
from engines.models.transformers_backend.description import TransformersModelConfig, describe
from engines.mpi.cache.window import request_blocks
from engines.mpi.runner.budget import ACTIVATION_HEADROOM, CONTEXT_BYTES, gpu_cache_bytes, local_bytes
from engines.mpi.runner.largest_step import SCORED_TOKENS, LargestStep
from engines.partition import split_evenly, split_heads
from engines.sampling.batch import MAX_SAMPLED_ROWS
from lmi_server.config import EngineOptions

_SAMPLED_COPIES = 30
_SCORED_COPIES = 1.5
"""Simultaneous fp32 copies of a row of logits, besides the row itself, with every sampling parameter set. Fitted to
CPU measurements of one vocabulary with 1 to 128 rows, within 15 %. Not checked on a GPU."""


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """Predicted bytes per rank, or per GPU under engine=Python. Ranks have a GPU each, or share the CPU's memory."""

    ranks: int
    available: int
    """Memory of each GPU; on a CPU, the free memory for all ranks."""
    weights: int
    weights_in_all: int
    """Weights of the whole model, each counted once."""
    activations: int
    """Temporary memory of the largest step."""
    step_tokens: int
    """Tokens in the largest step."""
    kv_cache: int
    kv_bytes_per_token: int
    """KV cache of one token over all ranks."""
    kv_tokens: int
    """Capacity of the KV cache in tokens."""
    length: int
    """Tokens of each request, prompt and output."""
    kv_wanted: int
    """KV cache over all ranks for the configured maximum of concurrent requests of this length."""
    requests_at_once: int
    limited_by: str
    """The limit that determines `requests_at_once`."""
    shortage: str = ""
    """Why the model does not fit; empty if it does."""


def read_model(folder: Path) -> ModelConfig | None:
    """Return the model's shape, or None if its architecture is unknown."""
    for read in (read_config, describe):
        try:
            return read(folder)
        except UnsupportedModel:
            continue
    return None


def activation_bytes(model: ModelConfig, tokens: int, sampled: int, ranks: int, element: int) -> int:
    """Estimate the memory of the largest step on rank 0, besides weights and KV cache.

    tokens: in the step. sampled: sequences that gain a token. element: bytes per element of matrix products.
    """
    share = split_heads(model.num_heads, model.num_kv_heads, ranks, 0)
    attention = (2 * share.queries.size + 2 * share.kv_heads.size) * model.head_dim
    middle = split_evenly(model.intermediate_size, ranks, 0).size
    if model.experts is not None:
        expert = split_evenly(model.experts.intermediate_size, ranks, 0).size
        middle = max(middle, model.experts.top_k * (expert + model.hidden_size))
    widest = max(attention, (3 if model.gated_mlp else 2) * middle)
    # The residual stream, its norm, and the result of attention or MLP.
    layer = tokens * (3 * model.hidden_size + widest) * element
    scored = min(SCORED_TOKENS, tokens)
    copies = max(_SAMPLED_COPIES * min(MAX_SAMPLED_ROWS, sampled), _SCORED_COPIES * scored)
    rows = max(sampled, scored) + copies
    return layer + int(rows * model.vocab_size * 4)


def predict_rolling(
    engine: MpiEngineConfig,
    model: ModelConfig,
    target: ServingTarget,
    length: int | None = None,
    options: EngineOptions | None = None,
) -> MemoryPrediction | None:
    """Predict for engine=MPI; None if the GPUs' memory is unknown.

    length: defaults to option.max_model_len. options: the configured number of copies, for advice; defaults to one.
    """
    found = _predict_rolling(engine, model, target, length)
    if found is None or not found.shortage:
        return found
    remedy = _remedy(engine, model, target, length, options or EngineOptions())
    return replace(found, shortage=f"{found.shortage}; {remedy}")


def _predict_rolling(
    engine: MpiEngineConfig, model: ModelConfig, target: ServingTarget, length: int | None
) -> MemoryPrediction | None:
    available = target.device_bytes
    if available is None:
        return None
    ranks, on_gpu = engine.parallel.tp_size, engine.parallel.device == "cuda"
    dtype, longest = engine.model.dtype, engine.model.max_model_len
    own = weights.rank_bytes(model, engine.model, ranks, target.machine)
    largest = LargestStep.of(engine.scheduler.settings, longest)
    product = 2 if on_gpu and dtype != "fp32" else 4
    step = int(
        ACTIVATION_HEADROOM * activation_bytes(model, largest.num_tokens, largest.num_decodes, ranks, product)
    )
    cache = engine.cache
    token_bytes = model.kv_bytes_per_token(cache.stored_dtype(engine.parallel.device, dtype), ranks)
    block_bytes = cache.block_size * token_bytes
    heads = split_heads(model.num_heads, model.num_kv_heads, ranks, 0).kv_heads.size
    local_block = local_bytes(block_bytes, model.num_kv_heads, ranks, heads)
    if cache.kv_cache_bytes is None:
        free = gpu_cache_bytes(available, cache.gpu_memory_utilization, CONTEXT_BYTES, own, step)
        blocks = max(0, free) // local_block
    else:
        blocks = cache.kv_cache_bytes // block_bytes
    kv_tokens, wanted = blocks * cache.block_size, min(length or longest, longest)
    each = request_blocks(wanted, cache, model.window, largest.num_tokens)
    settings = engine.scheduler.settings
    allowed, fitting = settings.max_running, blocks // each
    places = "max_rolling_batch_size" if allowed == settings.max_num_seqs else "max_num_batched_tokens"
    limit = f"option.{places}; the KV cache has room for {fitting:,}"
    shortage = _shortage((own + step + blocks * local_block) * (1 if on_gpu else ranks), available, on_gpu)
    if not shortage and blocks < request_blocks(longest, cache, model.window, largest.num_tokens):
        shortage = f"the KV cache holds {kv_tokens:,} tokens, but option.max_model_len is {longest:,}"
    return MemoryPrediction(
        ranks=ranks,
        available=available,
        weights=own,
        weights_in_all=weights.rank_bytes(model, engine.model, 1, target.machine),
        activations=step,
        step_tokens=largest.num_tokens,
        kv_cache=blocks * local_block,
        kv_bytes_per_token=token_bytes,
        kv_tokens=kv_tokens,
        length=wanted,
        kv_wanted=allowed * each * block_bytes,
        requests_at_once=min(fitting, allowed),
        limited_by=limit if allowed <= fitting else "the KV cache",
        shortage=shortage,
    )


def _shortage(needed: int, available: int, on_gpu: bool) -> str:
    """Return why tensors of `needed` bytes do not fit; empty if they do."""
    needed += CONTEXT_BYTES if on_gpu else 0
    if needed <= available:
        return ""
    return f"{gigabytes(needed)} are needed, but only {gigabytes(available)} are available"


def _remedy(
    engine: MpiEngineConfig,
    model: ModelConfig,
    target: ServingTarget,
    length: int | None,
    options: EngineOptions,
) -> str:
    """Name the next larger tensor-parallel degree that fits, with fewer copies if needed; else other options."""
    most = min(target.machine.gpu_count, model.num_kv_heads)
    if isinstance(model, TransformersModelConfig) and model.one_rank_only:
        most = 1
    for degree in range(engine.parallel.tp_size + 1, most + 1):
        larger = replace(engine, parallel=replace(engine.parallel, tp_size=degree))
        found = _predict_rolling(larger, model, target, length)
        if found is not None and not found.shortage:
            fewer = fewer_copies(options, target.machine.gpu_count // degree)
            return f"option.tensor_parallel_degree={degree} fits{fewer and f' with {fewer}'}"
    if engine.cache.kv_cache_bytes is not None:  # then memory is short, never the cache
        return (
            "lower option.kv_cache_gb or option.max_num_batched_tokens, or use a smaller model or more memory"
        )
    return "lower option.max_model_len or option.max_num_batched_tokens, or use more or larger devices"


def predict_dynamic(
    engine: PythonEngineConfig,
    folder: Path,
    model: ModelConfig,
    target: ServingTarget,
    length: int | None = None,
) -> MemoryPrediction | None:
    """Predict for engine=Python, which spreads layers over the GPUs; None if their memory is unknown."""
    available = target.device_bytes
    if available is None:
        return None
    on_gpu = engine.parallel.device == "cuda"
    dtype = engine.model.dtype if on_gpu else "fp32"
    element, devices = (4 if dtype == "fp32" else 2), engine.parallel.tp_size if on_gpu else 1
    total = weights.count_parameters(folder) * element or model.weight_bytes(element)
    longest = engine.model.max_model_len
    rows, wanted = engine.batching.batch_size, min(length or longest, longest)
    token_bytes, tokens = model.kv_bytes_per_token(dtype, 1), rows * longest
    step = activation_bytes(model, tokens, rows, 1, element)
    shortage = _shortage(total // devices + tokens * token_bytes // devices + step, available, on_gpu)
    return MemoryPrediction(
        ranks=devices,
        available=available,
        weights=total // devices,
        weights_in_all=total,
        activations=step,
        step_tokens=tokens,
        kv_cache=tokens * token_bytes // devices,
        kv_bytes_per_token=token_bytes,
        kv_tokens=tokens,
        length=wanted,
        kv_wanted=rows * wanted * token_bytes,
        requests_at_once=rows,
        limited_by="batch_size",
        shortage=shortage and f"{shortage}; lower batch_size or option.max_model_len",
    )


def gigabytes(count: int) -> str:
    """Format a number of bytes in MB or GB, which are powers of ten."""
    unit, name = (1e9, "GB") if count >= 999.5e6 else (1e6, "MB")
    return f"{three_digits(count / unit)} {name}"


def three_digits(value: float) -> str:
    """Format with three significant digits, without trailing zeros: 0.012, 1.5, 24, 1370."""
    return f"{float(f'{value:.3g}'):g}"
