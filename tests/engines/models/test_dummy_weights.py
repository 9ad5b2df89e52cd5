"""Dummy weights: values, parts and shards of a tensor, and equality with a checkpoint of the same values."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engines.config import ModelSettings
from engines.models.dummy_weights import DummyWeights
from engines.models.loading import weight_source
from engines.models.tensor_files import BadCheckpoint
from engines.parallel import Communicator
from engines.partition import Shard
from tests.support.examples import examples
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.representatives import representatives
from tests.support.seeds import fresh_generator, integers
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import SHAPES, VOCAB_SIZE, make_runner, save_model

CPU = torch.device("cpu")
FP32 = torch.float32
NAME = "model.layers.3.mlp.up_proj.weight"


def dummy(stored: str = "float32", storage: torch.dtype = FP32) -> DummyWeights:
    return DummyWeights(stored, storage, FP32, CPU)


def reference_value(name: str, index: int) -> float:
    """Element `index` of a tensor, in plain Python: SplitMix64 seeded by the name, then a sum of four parts."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    parts = struct.unpack("<4H", (z ^ (z >> 31)).to_bytes(8, "little"))
    return float(np.float32(sum(parts) - 2 * 0xFFFF) * np.float32(0.02 / (2**16 / 3**0.5)))


def test_every_value_is_a_hash_of_the_name_and_the_index() -> None:
    weights = dummy()
    # More than one block of values in both dimensions.
    found = weights.columns(NAME, Shard(5, 70_005), (3, 80_000))
    for row, column in ((0, 0), (0, 65_535), (0, 65_536), (1, 0), (2, 69_999)):
        assert found[row, column].item() == reference_value(NAME, row * 80_000 + 5 + column)
    vector = weights.rows(["lm_head.bias"], [Shard(10**9, 10**9 + 70_000)], (2 * 10**9,))
    for index in (0, 65_536, 69_999):
        assert vector[index].item() == reference_value("lm_head.bias", 10**9 + index)


@examples(60)
@given(st.data(), st.integers(1, 5), st.sampled_from([1, 2, 7, 64, 30_000, 70_000]))
def test_all_parts_come_from_the_same_tensor(data: st.DataObject, rows: int, columns: int) -> None:
    weights, shape = dummy(), (rows, columns)
    whole = weights.tensor(NAME, shape)

    def shard(size: int) -> Shard:
        start = data.draw(st.integers(0, size - 1))
        return Shard(start, data.draw(st.integers(start + 1, size)))

    ranges = [shard(rows), shard(rows)]
    joined = torch.cat([whole[one.start : one.stop] for one in ranges])
    assert torch.equal(weights.rows([NAME], ranges, shape), joined)
    other = weights.tensor("other", (2, columns))
    joined_rows = weights.rows([NAME, "other"], [ranges[0], Shard(1, 2)], (rows + 2, columns))
    assert torch.equal(joined_rows, torch.cat((whole[ranges[0].start : ranges[0].stop], other[1:])))
    column_range = shard(columns)
    assert torch.equal(
        weights.columns(NAME, column_range, shape), whole[:, column_range.start : column_range.stop]
    )
    stacked = weights.stacked_columns([NAME, "b"], column_range, shape)
    assert torch.equal(stacked[0], whole[:, column_range.start : column_range.stop])
    assert torch.equal(stacked[1], weights.tensor("b", shape)[:, column_range.start : column_range.stop])
    assert all(
        part.is_contiguous()
        for part in (joined, joined_rows, stacked, weights.columns(NAME, column_range, shape))
    )


def test_matrices_and_biases_are_roughly_normal_and_norms_near_one() -> None:
    weights = dummy()
    matrix = weights.tensor(NAME, (500, 400))
    assert abs(matrix.mean().item()) < 2e-4
    assert 0.0198 < matrix.std().item() < 0.0205
    inside = [(matrix.abs() < count * 0.02).float().mean().item() for count in (1, 2, 3)]
    # Shares of a normal distribution within 1, 2 and 3 standard deviations.
    assert inside == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.015)
    pairs = torch.stack((matrix.flatten()[:-1], matrix.flatten()[1:]))
    assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.01
    both = torch.stack((matrix.flatten(), weights.tensor("another.weight", (500, 400)).flatten()))
    assert abs(torch.corrcoef(both)[0, 1].item()) < 0.01
    for name in ("model.norm.weight", "h.0.input_layernorm.weight", "h.0.ln_attn.weight", "a.q_norm.weight"):
        norm = weights.tensor(name, (4096,))
        assert abs(norm.mean().item() - 1) < 2e-3
        assert 0.018 < norm.std().item() < 0.022
    for name in ("model.norm.bias", "h.0.ln_f.bias", "q_proj.bias", "normal.up_proj.weight"):
        assert abs(weights.tensor(name, (4096,)).mean().item()) < 2e-3


def test_values_are_rounded_like_those_of_a_checkpoint() -> None:
    exact = dummy().tensor(NAME, (300, 300))
    assert torch.equal(dummy("float16").tensor(NAME, (300, 300)), exact.half().float())
    rounded = dummy("bfloat16").tensor(NAME, (300, 300))
    assert not torch.equal(rounded, exact)
    assert torch.equal(rounded, exact.bfloat16().float())
    assert torch.equal(dummy("float32", torch.bfloat16).tensor(NAME, (300, 300)), rounded)
    low = DummyWeights("bfloat16", torch.bfloat16, torch.bfloat16, CPU).tensor(NAME, (300, 300))
    assert low.dtype == torch.bfloat16
    assert torch.equal(low.float(), rounded)


def test_some_bf16_values_are_not_exact_in_fp16_as_in_a_trained_model() -> None:
    matrix = dummy("bfloat16").tensor(NAME, (1000, 1000))
    inexact = (matrix.half().float() != matrix).float().mean().item()
    natural = (
        torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16().float()
    )
    assert inexact == pytest.approx((natural.half().float() != natural).float().mean().item(), rel=0.5)


def test_bytes_are_counted_in_the_dtype_of_the_checkpoint() -> None:
    weights = dummy("bfloat16")
    weights.tensor("norm.weight", (10,))
    weights.stacked_columns(["a", "b"], Shard(1, 3), (5, 4))
    assert weights.owned_bytes == 2 * 10 + 2 * 2 * 5 * 2
    assert dummy("strange").tensor("a", (1,)).shape == (1,)
    weights.close()


def test_a_part_beyond_the_tensor_is_refused() -> None:
    with pytest.raises(BadCheckpoint, match="'a' has only 4 rows"):
        dummy().rows(["a"], [Shard(0, 2), Shard(3, 5)], (4, 2))
    with pytest.raises(BadCheckpoint, match="'a' has only 2 columns"):
        dummy().columns("a", Shard(1, 3), (4, 2))


def test_load_format_selects_the_source_of_weights(tmp_path: Path) -> None:
    settings = ModelSettings(str(tmp_path), "tiny", "fp32", 64, "dummy")
    assert isinstance(weight_source(settings, "float32", FP32, FP32, CPU, Communicator()), DummyWeights)
    read = ModelSettings(str(tmp_path), "tiny", "fp32", 64)
    with pytest.raises(BadCheckpoint, match=r"contains no \.safetensors file"):
        weight_source(read, "float32", FP32, FP32, CPU, Communicator())


IN_MAKE_TEST = [
    ("llama", 3), ("mixtral", 2), ("falcon-40b", 2), ("phi3", 1), ("gpt2", 2), ("gpt_neox", 1), ("opt", 1),
    ("qwen3_moe", 1), ("qwen3_moe", 2), ("gemma2", 1), ("gemma2", 2), ("bloom", 2),
]  # fmt: skip


def save_dummy_checkpoint(kind: str, folder: Path) -> None:
    """Save a checkpoint of transformers, filled with the dummy values of its tensor names."""
    save_model(folder, kind, tie_word_embeddings=False)
    file = folder / "model.safetensors"
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(file).items()}
    save_file({name: dummy().tensor(name, shape) for name, shape in shapes.items()}, file)


@pytest.mark.parametrize(
    ("kind", "degree"),
    representatives([*((kind, degree) for kind in SHAPES for degree in (1, 2)), ("llama", 3)], IN_MAKE_TEST),
)
def test_logits_match_those_of_a_checkpoint_with_the_same_values(
    kind: str, degree: int, tmp_path: Path
) -> None:
    prompt = integers(fresh_generator(), 0, VOCAB_SIZE, 12)
    save_dummy_checkpoint(kind, tmp_path)

    def run(load_format: str) -> dict[tuple[int, int], torch.Tensor]:
        def run_rank(comm: ThreadCommunicator) -> dict[tuple[int, int], torch.Tensor]:
            runner = make_runner(tmp_path, comm, load_format=load_format)
            return run_plans(runner, plans_in_chunks([prompt], [[0, 1, 2, 3]], [[7]]))

        return run_ranks(degree, run_rank)[0]

    from_files = run("auto")
    (tmp_path / "model.safetensors").unlink()
    from_dummy = run("dummy")
    assert from_dummy.keys() == from_files.keys()
    assert all(torch.equal(from_dummy[position], from_files[position]) for position in from_files)
    assert max(logits.std().item() for logits in from_dummy.values()) > 0
