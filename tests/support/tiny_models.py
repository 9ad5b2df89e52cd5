"""Small checkpoints with random weights, loaded by our model runner and by transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.config import CacheConfig, ModelSettings, ParallelConfig
from engines.models.loading import describe
from engines.mpi.runner.loading import DTYPES, LoadedModel
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels._triton import INTERPRETED
from tests.support.plans import BLOCK_SIZE, load

VOCAB_SIZE = 97
"""Prime, so it is not divisible by the number of ranks."""
_MAX_STEP_TOKENS = 24 if INTERPRETED else 256
"""A runner runs the largest step when it starts, and Triton's interpreter takes milliseconds per row."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_LLAMA = _COMMON | {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 4,
}
_FALCON = _COMMON | {"hidden_size": 40, "num_attention_heads": 10, "ffn_hidden_size": 50}

_GEMMA = _LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 12}
"""Windows are 7 tokens, shorter than the prompts."""

SHAPES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 6},
    "mixtral": _LLAMA | {"num_local_experts": 4, "intermediate_size": 30},
    # Like 7B (one KV head, one norm), and like 40B.
    "falcon-7b": _FALCON | {"multi_query": True},
    "falcon-40b": _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon-rw": _FALCON
    | {
        "alibi": True,
        "parallel_attn": False,
        "multi_query": False,
        "bias": True,
        "hidden_size": 48,
        "num_attention_heads": 8,
    },
    "qwen3_moe": _LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 30},
    "gemma": _GEMMA,
    "gemma2": _GEMMA | {"sliding_window": 7},
    "gemma3_text": _GEMMA | {"sliding_window": 7, "num_hidden_layers": 3, "sliding_window_pattern": 2},
    "phi3": _LLAMA | {"head_dim": 4, "original_max_position_embeddings": 64, "pad_token_id": 0},
    "gpt2": {"vocab_size": VOCAB_SIZE, "n_positions": 64, "n_embd": 36, "n_layer": 2, "n_head": 9},
    "gpt_neox": _COMMON | {"hidden_size": 72, "intermediate_size": 50, "num_attention_heads": 9},
    "opt": _COMMON | {"hidden_size": 36, "word_embed_proj_dim": 36, "ffn_dim": 50, "num_attention_heads": 9},
    "mpt": {"vocab_size": VOCAB_SIZE, "d_model": 36, "n_layers": 2, "n_heads": 9, "max_seq_len": 64},
    "bloom": {"vocab_size": VOCAB_SIZE, "hidden_size": 36, "n_layer": 2, "n_head": 9},
}
"""Model configs by name. Their proportions are those of SmolLM2 (9 heads over 3 KV heads), or close to them."""


def save_model(
    folder: Path,
    kind: str,
    *,
    seed: int = 0,
    dtype: str = "fp32",
    exact_in_fp16: bool = False,
    max_shard_size: str | None = None,
    **changes: Any,
) -> None:
    """Save a checkpoint of one of `SHAPES`, with `changes` to its config.

    Every parameter is random, norms and biases too, and large enough that logits differ clearly.
    `exact_in_fp16`: weights have few bits, like those of a quantized model, and are exact in fp16 and bf16.
    """
    # A copy, since transformers modifies the dictionaries that it gets.
    config = AutoConfig.for_model(kind.partition("-")[0], **deepcopy({**SHAPES[kind], **changes}))
    save_random(
        folder, config, seed=seed, dtype=dtype, exact_in_fp16=exact_in_fp16, max_shard_size=max_shard_size
    )


def save_random(
    folder: Path,
    config: Any,
    *,
    seed: int = 0,
    dtype: str = "fp32",
    exact_in_fp16: bool = False,
    max_shard_size: str | None = None,
) -> None:
    """Save a checkpoint for a `config` of transformers. Arguments are those of `save_model`."""
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.3
            if ("norm" in name or ".ln_" in name) and name.endswith("weight"):
                values = 1 + values / 3
            parameter.copy_((values * 64).round() / 64 if exact_in_fp16 else values)
    model.to(DTYPES[dtype])
    model.save_pretrained(folder, **({} if max_shard_size is None else {"max_shard_size": max_shard_size}))


def save_llama(folder: Path, **changes: Any) -> None:
    save_model(folder, "llama", **changes)


def load_oracle(folder: Path, dtype: str) -> Any:
    """The transformers model with weights rounded to `dtype`. It computes in fp32."""
    # The eager attention of Falcon adds ALiBi twice: to the scores, and to the mask that it adds to them.
    attention = "sdpa" if getattr(AutoConfig.from_pretrained(folder), "alibi", False) else "eager"
    # Experts one by one, since the grouped product restricts the shapes.
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation=attention, experts_implementation="eager"
    )
    return model.float().eval()


@torch.inference_mode()
def oracle_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits of every position: [len(token_ids), vocab_size], fp32."""
    logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


def make_runner(
    folder: Path,
    comm: Communicator | None = None,
    *,
    dtype: str = "fp32",
    paged: bool = True,
    num_blocks: int = 64,
    max_model_len: int = 64,
    device: str = "cpu",
    load_format: str = "auto",
    max_step_tokens: int = _MAX_STEP_TOKENS,
    enforce_eager: bool = False,
    impl: str = "lmi",
    quantize: str = "none",
    byte_ranges: str = "",
    show_alive: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """A runner with `num_blocks` blocks of `BLOCK_SIZE` tokens."""
    comm = comm or Communicator()
    cache_dtype = "fp32" if device == "cpu" else dtype
    model = ModelSettings(
        str(folder), "tiny", dtype, max_model_len, load_format, quantize, byte_ranges, impl=impl
    )
    token_bytes = describe(model).kv_bytes_per_token(cache_dtype, comm.world_size)
    return load(
        model,
        CacheConfig(BLOCK_SIZE, paged, num_blocks * BLOCK_SIZE * token_bytes),
        max_step_tokens,
        parallel=ParallelConfig(tp_size=comm.world_size, device=device, enforce_eager=enforce_eager),
        comm=comm,
        stopwatch=Stopwatch(lambda: 0.0, show_alive),
    )
