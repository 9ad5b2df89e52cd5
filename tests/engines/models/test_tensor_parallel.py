"""Tensor parallelism with ranks as threads: results match one rank, and each rank loads only its shard."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import lmi_kernels
from engines.models.architectures import read_config
from engines.models.decoder import build_decoder
from engines.models.parts import Parts
from engines.models.weights import WeightReader
from engines.mpi.runner.loading import LoadedModel
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import Storage
from lmi_kernels.cpu.weight import blocks_of
from tests.engines.models.conftest import LoneRank, assert_logits_match, store_head
from tests.support.caches import num_kv_heads
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.representatives import representatives
from tests.support.seeds import fresh_generator, integers
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import (
    SHAPES,
    VOCAB_SIZE,
    load_oracle,
    make_runner,
    save_llama,
    save_model,
)

TABLES = [[9, 2, 31, 4, 17, 0, 22], [63, 7, 50, 8, 33]]
CHUNKS = [[11, 4, 3], [2, 8]]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm2": ("llama", {}),
    "smollm2-exact": ("llama", {"exact_in_fp16": True}),
    "untied-with-biases": (
        "llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "one-kv-head-each": (
        "llama",
        {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 10},
    ),
    "sharded-bf16": ("llama", {"dtype": "bf16", "max_shard_size": "8KB"}),
    "mistral": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mixtral": ("mixtral", {"max_shard_size": "8KB"}),
    "mixtral-exact": ("mixtral", {"exact_in_fp16": True, "tie_word_embeddings": False}),
    "falcon-7b": ("falcon-7b", {}),
    "falcon-7b-bias": ("falcon-7b", {"bias": True}),
    "falcon-7b-own-kv-heads": ("falcon-7b", {"multi_query": False}),
    "falcon-40b": ("falcon-40b", {"exact_in_fp16": True}),
    "falcon-40b-one-norm": (
        "falcon-40b",
        {"num_ln_in_parallel_attn": 1, "bias": True, "tie_word_embeddings": False},
    ),
    "falcon-rw": ("falcon-rw", {}),
    "qwen3-moe": ("qwen3_moe", {"mlp_only_layers": [1]}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", {}),
    "phi3": ("phi3", {}),
    "gpt2": ("gpt2", {}),
    "gpt-neox": ("gpt_neox", {}),
    "opt": ("opt", {"tie_word_embeddings": False}),
    "mpt": ("mpt", {}),
    "bloom": ("bloom", {}),
}

CASES = [(variant, degree) for variant in VARIANTS for degree in (2, 3)] + [
    ("one-kv-head-each", 4),
    # More ranks than KV heads: some ranks hold the same head.
    ("untied-with-biases", 4),
    ("qwen3", 4),
    ("falcon-40b-one-norm", 5),
]
"""Falcon-7B's only KV head is on every rank. The first of Falcon-40B's two KV heads is on 2 of 3 ranks."""
IN_MAKE_TEST = [
    ("smollm2", 2), ("smollm2", 3), ("untied-with-biases", 4), ("mixtral", 2), ("falcon-40b", 3), ("falcon-7b-bias", 2),
    ("phi3", 2), ("gpt2", 2), ("gpt-neox", 3),
]  # fmt: skip


def _save(folder: Path, variant: str) -> None:
    kind, changes = VARIANTS[variant]
    save_model(folder, kind, **changes)


@pytest.mark.parametrize(("variant", "degree"), representatives(CASES, IN_MAKE_TEST))
def test_logits_match_transformers(variant: str, degree: int, tmp_path: Path) -> None:
    _save(tmp_path, variant)
    _compare(tmp_path, degree)


def _compare(folder: Path, degree: int) -> None:
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (25, 18)]
    plans = plans_in_chunks(prompts, TABLES, CHUNKS)

    def run_rank(comm: ThreadCommunicator) -> dict[tuple[int, int], torch.Tensor]:
        return run_plans(make_runner(folder, comm), plans)

    logits_by_position, *others = run_ranks(degree, run_rank)
    assert_logits_match(logits_by_position, load_oracle(folder, "fp32"), prompts)
    assert not any(others)  # only rank 0 has logits


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("variant", ["smollm2", "mixtral"])
def test_int8_weights_are_as_accurate_on_several_ranks_as_on_one(variant: str, tmp_path: Path) -> None:
    """Shards are rounded on their own, so the tokens of two degrees may differ."""
    _save(tmp_path, variant)
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (25, 18)]
    plans = plans_in_chunks(prompts, TABLES, CHUNKS)

    def logits(degree: int, quantize: str) -> torch.Tensor:
        ranks = run_ranks(
            degree, lambda comm: run_plans(make_runner(tmp_path, comm, quantize=quantize), plans)
        )
        return torch.stack([ranks[0][place] for place in sorted(ranks[0])])

    exact = logits(1, "none")
    # The median, because a few rows choose other experts.
    alone, shared = ((logits(degree, "int8") - exact).norm(dim=1).median() for degree in (1, 2))
    assert 0 < shared < 2 * alone < exact.norm(dim=1).median() / 2


def _parameter_bytes(folder: Path) -> dict[str, int]:
    """Return the size of each tensor in the files."""
    sizes = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                tensor = tensors.get_tensor(name)
                unused = 2 * tensor.shape[1] if "embed_positions" in name else 0  # OPT's positions start at 2
                sizes[name] = (tensor.numel() - unused) * tensor.element_size()
    return sizes


def _is_replicated(name: str) -> bool:
    """Whether every rank has the whole tensor: norms, biases added after all-reduces, routers, learned positions."""
    endings = (
        "o_proj.bias",
        "down_proj.bias",
        "dense.bias",
        "dense_4h_to_h.bias",
        "c_proj.bias",
        "out_proj.bias",
    )
    endings += ("fc2.bias", *_COUNTED_REPLICAS)
    return "norm" in name or ".ln_" in name or name.endswith(endings)


_COUNTED_REPLICAS = ("moe.gate.weight", "mlp.gate.weight", "wpe.weight", "embed_positions.weight")
"""Replicated tensors that `weight_bytes` counts."""


def _kv_head_bytes(folder: Path, element_bytes: int) -> int:
    """Return the bytes of the key and value projections of one head in all layers."""
    config = read_config(folder)
    columns = config.hidden_size + (1 if config.qkv_bias else 0)
    return 2 * config.num_layers * config.head_dim * columns * element_bytes


def test_a_tied_head_may_differ_from_the_embedding_on_some_ranks_only(tmp_path: Path) -> None:
    save_llama(tmp_path)
    store_head(
        tmp_path, "lm_head.weight", "model.embed_tokens.weight", "both"
    )  # a row of the last rank differs
    _compare(tmp_path, 3)


def test_experts_in_one_tensor_are_split_over_ranks(tmp_path: Path) -> None:
    save_model(tmp_path, "mixtral")
    load_oracle(tmp_path, "fp32").save_pretrained(tmp_path, save_original_format=False)
    _compare(tmp_path, 3)


@pytest.mark.parametrize(
    ("variant", "degree"), representatives([(variant, 1) for variant in VARIANTS] + CASES, IN_MAKE_TEST)
)
def test_ranks_hold_every_parameter_once_except_for_replicas(
    variant: str, degree: int, tmp_path: Path
) -> None:
    _save(tmp_path, variant)
    sizes = _parameter_bytes(tmp_path)
    replicated_bytes = sum(size for name, size in sizes.items() if _is_replicated(name))
    runners = [make_runner(tmp_path, LoneRank(rank, degree)) for rank in range(degree)]
    owned = [runner.report.owned_bytes for runner in runners]
    config = read_config(tmp_path)
    num_head_copies = max(0, degree - config.num_kv_heads)
    copied_bytes = num_head_copies * _kv_head_bytes(tmp_path, 2 if config.dtype == "bfloat16" else 4)
    # Logits are right (above), so the shards cover all parameters. With this sum they cannot overlap either.
    assert sum(owned) == sum(sizes.values()) + (degree - 1) * replicated_bytes + copied_bytes
    # No rank has more than one KV group more than the others.
    assert max(owned) == owned[0]
    assert max(owned) - min(owned) <= 0.6 * sum(owned) / degree
    kv_heads = [num_kv_heads(runner.cache) for runner in runners]
    assert sum(kv_heads) == config.num_kv_heads + num_head_copies


@pytest.mark.parametrize("degree", representatives([1, 2, 3, 4], [2]))
@pytest.mark.parametrize("kind", SHAPES)
def test_weight_bytes_predicts_the_weights_of_rank_0(kind: str, degree: int, tmp_path: Path) -> None:
    save_model(tmp_path, kind, tie_word_embeddings=degree % 2 == 0)
    sizes = _parameter_bytes(tmp_path)
    norms = sum(
        size for name, size in sizes.items() if _is_replicated(name) and not name.endswith(_COUNTED_REPLICAS)
    )
    config = read_config(tmp_path)
    weights = WeightReader(tmp_path, torch.float32, torch.float32, torch.device("cpu"))
    build_decoder(Parts(config, weights, LoneRank(0, degree), Stopwatch(lambda: 0.0)))
    weights.close()
    assert config.weight_bytes(4, degree) == weights.owned_bytes - norms


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3_moe"])
def test_weight_bytes_of_int8_are_those_of_the_packed_matrices(
    kind: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, kind, tie_word_embeddings=tied, dtype="bf16")
    held, real_pack = [], lmi_kernels.pack

    def pack(
        weight: Any, *rest: Any, storage: Storage | None = None, **named: Any
    ) -> lmi_kernels.LinearWeight:
        matrix = torch.cat(blocks_of(weight))
        held.append(len(matrix) * (matrix.shape[1] + 12) if storage else matrix.nbytes)
        return real_pack(weight, *rest, **named)

    monkeypatch.setattr(lmi_kernels, "pack", pack)
    quantize = partial(pack, storage=Storage.INT8)
    weights = WeightReader(tmp_path, torch.float32, None, torch.device("cpu"), quantize)
    build_decoder(Parts(read_config(tmp_path), weights, Communicator(), Stopwatch(lambda: 0.0)))
    weights.close()
    # A bias counts as one byte more.
    assert read_config(tmp_path).weight_bytes(2, int8=True) == pytest.approx(sum(held), rel=0.02)


def test_all_ranks_use_the_size_of_the_smallest_cache(tmp_path: Path) -> None:
    save_llama(tmp_path)

    def load_rank(comm: ThreadCommunicator) -> LoadedModel:
        return make_runner(tmp_path, comm, num_blocks=40 if comm.rank else 23)

    assert [runner.cache.num_blocks for runner in run_ranks(3, load_rank)] == [23, 23, 23]
