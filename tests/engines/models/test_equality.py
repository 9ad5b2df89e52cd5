"""LMI's models in the model runner, compared with transformers on the same checkpoints."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.models.architectures import read_config
from engines.mpi.runner.loading import LoadedModel
from engines.mpi.scheduler.step_plan import WANT_NOTHING
from tests.engines.models.conftest import LLAMA3_ROPE, assert_logits_match, store_head
from tests.support.caches import fill_with_nan
from tests.support.plans import PlanMaker, plans_in_chunks, run_plan, run_plans
from tests.support.representatives import representatives
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import (
    VOCAB_SIZE,
    load_oracle,
    make_runner,
    oracle_logits,
    save_llama,
    save_model,
)

SHUFFLED = [[9, 2, 31, 4, 17, 0, 22, 30, 5, 40, 12], [63, 7, 50, 8, 33, 1, 44, 20, 6, 3, 11], [10, 62, 13]]
CONSECUTIVE = [list(range(5, 16)), list(range(16, 27)), list(range(40, 43))]

LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}

PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm2": ("llama", {}),
    "smollm2-exact": ("llama", {"exact_in_fp16": True}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "sharded": ("llama", {"tie_word_embeddings": False, "max_shard_size": "10KB"}),
    "one-kv-head-each": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 10}),
    "shares-of-four": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 32}),
    "one-kv-head": (
        "llama",
        {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 32},
    ),
    "wide-heads": ("llama", {"head_dim": 10}),
    "attention-bias": ("llama", {"attention_bias": True}),
    "mlp-bias": ("llama", {"mlp_bias": True, "attention_bias": True}),
    "rope-linear": ("llama", {"rope_parameters": LINEAR_ROPE, "head_dim": 8}),
    "rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 16}),
    "rope-yarn": ("llama", {"rope_parameters": YARN_ROPE, "head_dim": 16}),
    "large-eps": ("llama", {"rms_norm_eps": 0.5}),
    "rope-dynamic": ("llama", {"rope_parameters": DYNAMIC_ROPE, "head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": 9}),
    "mistral-windows-in-some-layers": (
        "mistral",
        {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "mistral-window-of-one": ("mistral", {"sliding_window": 1, "head_dim": 10}),
    "qwen2": ("qwen2", {}),
    "qwen2-untied-one-kv-head": (
        "qwen2",
        {"tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-untied-bias": ("qwen3", {"tie_word_embeddings": False, "attention_bias": True}),
    "qwen3-rope-llama3": ("qwen3", {"rope_parameters": LLAMA3_ROPE, "head_dim": 16, "rms_norm_eps": 0.5}),
    "qwen3-window": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "exact_in_fp16": True},
    ),
    "mixtral": ("mixtral", {}),
    "mixtral-exact": ("mixtral", {"exact_in_fp16": True, "max_shard_size": "10KB", "sliding_window": 13}),
    "mixtral-untied-one-of-eight": (
        "mixtral",
        {"tie_word_embeddings": False, "num_local_experts": 8, "num_experts_per_tok": 1, "head_dim": 6},
    ),
    "mixtral-all-of-three": ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3}),
    "falcon-7b": ("falcon-7b", {}),
    "falcon-7b-exact": ("falcon-7b", {"exact_in_fp16": True}),
    "falcon-7b-untied-bias": ("falcon-7b", {"tie_word_embeddings": False, "bias": True}),
    "falcon-7b-own-kv-heads": ("falcon-7b", {"multi_query": False, "bias": True}),
    "falcon-7b-rope-linear": ("falcon-7b", {"rope_parameters": LINEAR_ROPE, "layer_norm_epsilon": 0.5}),
    "falcon-40b": ("falcon-40b", {}),
    "falcon-40b-untied-bias": ("falcon-40b", {"tie_word_embeddings": False, "bias": True}),
    "falcon-40b-one-norm": ("falcon-40b", {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": None}),
    "falcon-40b-rope-llama3": ("falcon-40b", {"rope_parameters": LLAMA3_ROPE, "hidden_size": 160}),
    "falcon-rw": ("falcon-rw", {}),
    "falcon-parallel-alibi": ("falcon-rw", {"parallel_attn": True, "bias": False}),
    "qwen3-moe": ("qwen3_moe", {}),
    "qwen3-moe-mixed": (
        "qwen3_moe",
        {"norm_topk_prob": True, "mlp_only_layers": [1], "num_experts": 8, "num_experts_per_tok": 3},
    ),
    "qwen3-moe-every-second": (
        "qwen3_moe",
        {"decoder_sparse_step": 2, "tie_word_embeddings": False}
        | {"use_sliding_window": True, "sliding_window": 7},
    ),
    "gemma": ("gemma", {}),
    "gemma-one-kv-head": ("gemma", {"num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32}),
    "gemma2": ("gemma2", {}),
    "gemma2-low-caps": (
        "gemma2",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 5},
    ),
    "gemma3": ("gemma3_text", {}),
    "gemma3-all-near": ("gemma3_text", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 3}),
    "phi3": ("phi3", {}),
    "phi3-partial-rotary-window": (
        "phi3",
        {"rope_parameters": PARTIAL_ROPE, "head_dim": 8, "hidden_size": 72, "sliding_window": 9},
    ),
    "gpt2": ("gpt2", {}),
    "gpt2-scaled-by-layer": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "n_inner": 50, "activation_function": "relu"},
    ),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False, "scale_attn_weights": False}),
    "gpt-neox": ("gpt_neox", {"rope_parameters": PARTIAL_ROPE}),
    "gpt-neox-sequential": (
        "gpt_neox",
        {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_fast"},
    ),
    "opt": ("opt", {}),
    "opt-without-bias": ("opt", {"enable_bias": False, "tie_word_embeddings": False}),
    "mpt": ("mpt", {}),
    "mpt-8-heads": (
        "mpt",
        {"n_heads": 8, "d_model": 32, "attn_config": {"softmax_scale": 0.3}},
    ),
    "bloom": ("bloom", {}),
    "bloom-8-heads": ("bloom", {"n_head": 8, "hidden_size": 48, "tie_word_embeddings": False}),
}
IN_MAKE_TEST = {
    "smollm2", "untied", "sharded", "one-kv-head", "mlp-bias", "rope-llama3", "rope-yarn", "mistral",
    "mistral-windows-in-some-layers", "qwen2", "qwen3", "qwen3-moe-mixed", "mixtral", "falcon-7b", "falcon-40b",
    "falcon-rw", "gemma", "gemma2", "gemma3", "phi3-partial-rotary-window", "gpt2", "gpt-neox", "opt", "mpt", "bloom",
}  # fmt: skip
GREEDY = [
    "smollm2", "smollm2-exact", "mistral", "qwen2", "qwen3", "qwen3-moe", "mixtral", "falcon-7b", "falcon-40b",
    "falcon-rw", "gemma2", "gemma3", "phi3", "gpt2", "gpt-neox", "opt", "mpt", "bloom",
]  # fmt: skip

PRECISIONS = [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "bf16"), ("bf16", "fp32")]
"""(dtype of the checkpoint, `option.dtype`)."""


def _save(folder: Path, variant: str, seed: int = 0) -> None:
    kind, changes = VARIANTS[variant]
    save_model(folder, kind, seed=seed, **changes)


def _prompts() -> list[list[int]]:
    generator = fresh_generator()
    return [integers(generator, 0, VOCAB_SIZE, count) for count in (40, 17, 9)]


def _compare(runner: LoadedModel, oracle: Any, tables: list[list[int]], chunks: list[list[int]]) -> None:
    """Compare the end of every chunk, and every decoded token."""
    prompts = _prompts()
    assert_logits_match(run_plans(runner, plans_in_chunks(prompts, tables, chunks)), oracle, prompts)


@pytest.mark.parametrize("variant", representatives(VARIANTS, IN_MAKE_TEST))
def test_logits_match_transformers(variant: str, tmp_path: Path) -> None:
    _save(tmp_path, variant)
    oracle = load_oracle(tmp_path, "fp32")
    # Whole prompts, then decodes. Then chunks of uneven sizes in the same steps as decodes of other sequences.
    _compare(make_runner(tmp_path), oracle, SHUFFLED, [[40], [12], [4]])
    _compare(make_runner(tmp_path), oracle, SHUFFLED, [[5, 1, 8, 3, 16], [1, 1, 7, 4], [2, 2]])
    _compare(make_runner(tmp_path, paged=False), oracle, CONSECUTIVE, [[7, 4, 20], [17], [4, 1]])


@pytest.mark.parametrize(
    ("kind", "exact_in_fp16", "stored", "requested"),
    [("llama", exact, *precisions) for exact in (True, False) for precisions in PRECISIONS]
    + [(kind, False, "bf16", "bf16") for kind in ("mixtral", "falcon-40b")],
)
def test_weights_are_rounded_to_the_requested_dtype(
    kind: str, exact_in_fp16: bool, stored: str, requested: str, tmp_path: Path
) -> None:
    save_model(tmp_path, kind, dtype=stored, exact_in_fp16=exact_in_fp16)
    _compare(
        make_runner(tmp_path, dtype=requested),
        load_oracle(tmp_path, requested),
        SHUFFLED,
        [[12, 9], [17], [3]],
    )


@pytest.mark.parametrize("variant", representatives(GREEDY, ["smollm2", "gemma3"]))
@pytest.mark.parametrize("paged", [True, False])
def test_greedy_tokens_match_transformers(variant: str, paged: bool, tmp_path: Path) -> None:
    _save(tmp_path, variant, seed=1)
    oracle = load_oracle(tmp_path, "fp32")
    runner = make_runner(tmp_path, paged=paged)
    prompt = _prompts()[1]
    expected = oracle.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=24,
        min_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0].tolist()
    tokens = list(prompt)
    for _ in range(24):
        # Recompute the whole sequence with a different chunking each time. Earlier steps must not matter.
        plans = plans_in_chunks(
            [tokens], [SHUFFLED[0] if paged else CONSECUTIVE[0]], [[len(tokens) // 2 + 1, 99]]
        )
        logits = run_plans(runner, plans)
        tokens.append(int(logits[0, len(tokens) - 1].argmax()))
    assert tokens == expected


@pytest.mark.parametrize(
    ("kind", "stored"),
    representatives(
        product(["llama", "opt", "gpt_neox"], ["both", "both equal", "head"]),
        [("llama", "both equal"), ("opt", "both"), ("gpt_neox", "head")],
    ),
)
def test_a_stored_head_is_used_even_if_the_config_ties_it(kind: str, stored: str, tmp_path: Path) -> None:
    save_model(tmp_path, kind)
    names = read_config(tmp_path).names
    store_head(tmp_path, f"{names.head}.weight", f"{names.prefix}{names.embedding}.weight", stored)
    _compare(make_runner(tmp_path), load_oracle(tmp_path, "fp32"), SHUFFLED, [[12, 9], [17], [3]])


@pytest.mark.parametrize(
    ("kind", "missing_prefix"), [("opt", "model."), ("opt", "model.decoder."), ("llama", "model.")]
)
def test_tensor_names_may_lack_a_prefix(kind: str, missing_prefix: str, tmp_path: Path) -> None:
    """OPT checkpoints of 6.7B parameters and more have only `decoder.`."""
    save_model(tmp_path, kind)
    oracle = load_oracle(tmp_path, "fp32")
    file = tmp_path / "model.safetensors"
    renamed = {name.removeprefix(missing_prefix): tensor for name, tensor in load_file(file).items()}
    save_file(renamed, file, {"format": "pt"})
    _compare(make_runner(tmp_path), oracle, SHUFFLED, [[12, 9], [17], [3]])


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_all_experts_of_a_layer_may_be_in_one_tensor(kind: str, tmp_path: Path) -> None:
    save_model(tmp_path, kind)
    oracle = load_oracle(tmp_path, "fp32")
    oracle.save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.1.mlp.experts.gate_up_proj" in load_file(tmp_path / "model.safetensors")
    _compare(make_runner(tmp_path), oracle, SHUFFLED, [[12, 9], [17], [3]])


def test_the_head_may_have_its_name_in_transformers(tmp_path: Path) -> None:
    save_model(tmp_path, "gpt_neox", tie_word_embeddings=False)
    oracle = load_oracle(tmp_path, "fp32")
    oracle.save_pretrained(tmp_path, save_original_format=False)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    _compare(make_runner(tmp_path), oracle, SHUFFLED, [[12, 9], [17], [3]])


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_projections_of_a_layer_may_have_different_dtypes(kind: str, tmp_path: Path) -> None:
    save_model(tmp_path, kind, dtype="bf16")
    file = tmp_path / "model.safetensors"
    kept = ("q_proj.weight", "gate_proj.weight", "experts.1.down_proj.weight")
    tensors = {
        name: tensor.float() if name.endswith(kept) else tensor for name, tensor in load_file(file).items()
    }
    for name in tensors:
        if name.endswith(kept):
            tensors[name] += 1e-3  # numbers that bf16 would round
    save_file(tensors, file, {"format": "pt"})
    _compare(make_runner(tmp_path), load_oracle(tmp_path, "fp32"), SHUFFLED, [[12, 9], [17], [3]])


def test_a_step_that_samples_nothing_returns_no_logits(tmp_path: Path) -> None:
    save_llama(tmp_path)
    runner = make_runner(tmp_path)
    prompt = tuple(_prompts()[0])
    maker = PlanMaker()
    maker.begin(5, (3, 1, 2))
    assert run_plan(runner, maker.plan({5: prompt[:8]}, {5: WANT_NOTHING})).logits is None
    # Its keys and values are in the cache nevertheless.
    logits = run_plan(runner, maker.plan({5: prompt[8:12]})).logits
    assert logits is not None
    expected = oracle_logits(load_oracle(tmp_path, "fp32"), prompt[:12])[-1]
    torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_computing_a_step_again_changes_nothing(tmp_path: Path) -> None:
    save_llama(tmp_path)
    runner = make_runner(tmp_path)
    plans = plans_in_chunks(_prompts(), SHUFFLED, [[20], [17], [9]])
    runner.steps.update(plans[0][0])
    batch = runner.steps.prepare(plans[0][0])
    first, second = runner.steps.compute(batch).logits, runner.steps.compute(batch).logits
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


@pytest.mark.usefixtures("native_kernels")
def test_native_kernels_do_not_read_beyond_a_sequences_keys(tmp_path: Path) -> None:
    """Old values there may be NaN, which masking would not hide."""
    save_llama(tmp_path)
    runner = make_runner(tmp_path)
    fill_with_nan(runner.cache, range(runner.cache.num_blocks))
    prompt = tuple(_prompts()[0][:9])  # the last block is only partly filled
    maker = PlanMaker()
    maker.begin(0, (9, 2, 31))
    logits = run_plan(runner, maker.plan({0: prompt})).logits
    assert logits is not None
    expected = oracle_logits(load_oracle(tmp_path, "fp32"), prompt)[-1]
    torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_a_cache_that_cannot_hold_the_longest_sequence_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    with pytest.raises(ValueError, match=r"holds 60 tokens, but option.max_model_len is 64; .*kv_cache_gb"):
        make_runner(tmp_path, num_blocks=15)
