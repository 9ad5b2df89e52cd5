"""Small checkpoints of architectures that only transformers implements, and their comparison with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from engines.models.transformers_backend.description import describe
from engines.mpi.runner.loading import LoadedModel
from engines.parallel import Communicator
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.seeds import fresh_generator, integers
from tests.support.thread_ranks import run_ranks
from tests.support.tiny_models import VOCAB_SIZE, load_oracle, make_runner, oracle_logits, save_random

TABLES = [[9, 2, 31, 4, 17, 0, 22, 30, 5, 40, 12], [63, 7, 50, 8, 33, 1, 44, 20, 6, 3, 11], [10, 62, 13]]
CHUNKINGS = ([[40], [12], [4]], [[5, 1, 8, 3, 16], [1, 1, 7, 4], [2, 2]])
"""Whole prompts, then one token at a time; chunks of uneven sizes that share steps with other sequences' decodes."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 3,
}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_EQUAL_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_SHARED_EXPERT = _EXPERTS | {"moe_intermediate_size": 20, "shared_expert_intermediate_size": 30}
_LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "head_dim": 4,
}

TRANSFORMERS_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "starcoder2": ("starcoder2", {}),
    "starcoder2-window": ("starcoder2", {"sliding_window": 8, "use_bias": False}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", _SLIDING),
    "stablelm": ("stablelm", _EQUAL_HEADS | {"hidden_size": 64}),
    "stablelm-2": (
        "stablelm",
        _EQUAL_HEADS | {"hidden_size": 64, "use_qkv_bias": True, "qk_layernorm": True},
    ),
    "phi-1": ("phi", _EQUAL_HEADS | {"hidden_size": 64}),
    "phi-2": ("phi", _EQUAL_HEADS | {"hidden_size": 80, "partial_rotary_factor": 0.4}),
    "cohere": ("cohere", {"logit_scale": 1.0}),
    "cohere-plus": ("cohere", {"use_qk_norm": True, "logit_scale": 2.0}),
    "cohere2": ("cohere2", _SLIDING | {"logit_scale": 1.0}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "logits_scaling": 0.2,
            "residual_multiplier": 0.22,
            "attention_bias": True,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "glm": ("glm", {"head_dim": 8}),
    "glm4": ("glm4", {"head_dim": 8, "partial_rotary_factor": 0.5}),
    "nemotron": ("nemotron", {}),
    "exaone4": ("exaone4", _SLIDING),
    "olmo": ("olmo", {"clip_qkv": 2.0}),
    "arcee": ("arcee", {}),
    "apertus": ("apertus", {}),
    "helium": ("helium", {"head_dim": 8}),
    "jais2": ("jais2", {}),
    "seed_oss": ("seed_oss", {"head_dim": 10}),
    "ministral": ("ministral", _SLIDING | {"head_dim": 10}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 8}),
    "hunyuan-alpha": (
        "hunyuan_v1_dense",
        {"head_dim": 8}
        | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}},
    ),
    "nanochat": ("nanochat", {}),
    "modernbert-decoder": (
        "modernbert-decoder",
        {"num_key_value_heads": 6, "num_hidden_layers": 3, "local_attention": 16},
    ),
    "olmoe": ("olmoe", _EXPERTS),
    "qwen2_moe": ("qwen2_moe", _SHARED_EXPERT | {"decoder_sparse_step": 2}),
    "qwen2_moe-window": ("qwen2_moe", _SHARED_EXPERT | _SLIDING | {"use_sliding_window": True}),
    "phimoe": ("phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "granitemoe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 2.0}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "moe_layer_start_index": 1},
    ),
    "glm4_moe": (
        "glm4_moe",
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "head_dim": 8}
        | {"first_k_dense_replace": 1},
    ),
    "minicpm3": ("minicpm3", _LATENT),
    "afmoe": (
        "afmoe",
        _EXPERTS | _SLIDING | {"moe_intermediate_size": 20, "num_shared_experts": 1, "head_dim": 8},
    ),
    "biogpt": ("biogpt", _EQUAL_HEADS | {"pad_token_id": None}),
    # transformers zeroes the row of `pad_token_id` of the tied embeddings when it loads the model.
    "youtu": ("youtu", _LATENT | {"pad_token_id": None}),
}
"""Model type in transformers and changes to `_SHAPE`, by name."""


def save_transformers_model(folder: Path, name: str, seed: int = 0, **changes: Any) -> None:
    """Save a random checkpoint of one of `TRANSFORMERS_MODELS`, with `changes` to its config."""
    model_type, own = TRANSFORMERS_MODELS[name]
    # A copy, since transformers modifies the dictionaries that it gets.
    save_random(folder, AutoConfig.for_model(model_type, **deepcopy(_SHAPE | own | changes)), seed=seed)


ONE_RANK = {
    "stablelm",
    "stablelm-2",
    "hunyuan",
    "hunyuan-alpha",
    "modernbert-decoder",
    "phimoe",
    "granitemoe",
}
ONE_RANK |= {"minicpm3", "youtu", "afmoe", "biogpt"}
"""Models that cannot be split over ranks."""


def degrees(folder: Path, name: str) -> tuple[int, ...]:
    """Return the tensor-parallel degrees at which one of `TRANSFORMERS_MODELS` is compared."""
    assert (name in ONE_RANK) == bool(describe(folder).one_rank_only), f"{name}: split over ranks or not"
    return (1,) if name in ONE_RANK else (1, 2, 3)


def differences(folder: Path, degree: int = 1) -> tuple[float, bool]:
    """Compare logits of whole prompts, chunks and decodes with those of transformers.

    Returns: the largest difference of a logit, and whether the likeliest tokens are always the same.
    """
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (40, 17, 9)]
    oracle = load_oracle(folder, "fp32")
    expected = [oracle_logits(oracle, prompt) for prompt in prompts]
    worst, same = 0.0, True
    for chunks in CHUNKINGS:
        found = _run(folder, degree, prompts, chunks)
        assert {(i, len(prompt) - 1) for i, prompt in enumerate(prompts)} <= set(found)
        for (i, position), logits in found.items():
            worst = max(worst, float((logits - expected[i][position]).abs().max()))
            # If two tokens are equally likely, either is correct.
            likeliest = expected[i][position][int(logits.argmax())]
            same = same and bool(likeliest >= expected[i][position].max() - 1e-4)
    return worst, same


def transformers_runner(folder: Path, comm: Communicator | None = None, **settings: Any) -> LoadedModel:
    return make_runner(folder, comm, impl="transformers", **settings)


def _run(
    folder: Path, degree: int, prompts: list[list[int]], chunks: Sequence[Sequence[int]]
) -> dict[tuple[int, int], torch.Tensor]:
    plans = plans_in_chunks(prompts, TABLES, chunks)
    if degree == 1:
        return run_plans(transformers_runner(folder), plans)
    return run_ranks(degree, lambda comm: run_plans(transformers_runner(folder, comm), plans))[0]
