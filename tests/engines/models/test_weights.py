"""`WeightReader`: parts of tensors, dtypes, and checkpoints that do not match their config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.models.tensor_files import BadCheckpoint
from engines.models.weights import WeightReader
from engines.partition import Shard
from tests.support.tiny_models import make_runner, save_model

CPU = torch.device("cpu")


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, torch.Tensor]:
    values = torch.arange(24.0)
    tensors = {
        "q": values.view(6, 4),
        "k": values.view(6, 4)[:2] + 100,
        "more": values.view(6, 4) * 3 + 0.5,
        "norm": torch.tensor([1.5, 1 / 3]),
        "half": values.view(6, 4).half(),
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    return tensors


@pytest.fixture
def reader(tensors: dict[str, torch.Tensor], tmp_path: Path) -> Iterator[WeightReader]:
    reader = WeightReader(tmp_path, torch.float32, torch.float32, CPU)
    yield reader
    reader.close()


def test_rows_of_several_tensors_are_concatenated(
    reader: WeightReader, tensors: dict[str, torch.Tensor]
) -> None:
    rows = reader.rows(["q", "k"], [Shard(2, 5), Shard(1, 2)], (8, 4))
    assert torch.equal(rows, torch.cat((tensors["q"][2:5], tensors["k"][1:2])))
    assert reader.owned_bytes == 4 * 4 * 4


def test_rows_of_one_tensor_come_in_the_requested_order(
    reader: WeightReader, tensors: dict[str, torch.Tensor]
) -> None:
    q = tensors["q"]
    rows = reader.rows(["q"], [Shard(4, 6), Shard(0, 1), Shard(4, 5)], (6, 4))
    assert torch.equal(rows, torch.cat((q[4:6], q[:1], q[4:5])))
    assert reader.owned_bytes == 4 * 4 * 4
    assert torch.equal(reader.rows(["norm"], [Shard(1, 2), Shard(0, 1)], (2,)), tensors["norm"].flip(0))


def test_the_same_columns_of_several_tensors_are_stacked(
    reader: WeightReader, tensors: dict[str, torch.Tensor]
) -> None:
    stacked = reader.stacked_columns(["q", "more"], Shard(1, 3), (6, 4))
    assert torch.equal(stacked, torch.stack((tensors["q"], tensors["more"]))[:, :, 1:3])
    assert reader.owned_bytes == 2 * 6 * 2 * 4
    whole = reader.stacked_columns(["more", "q"], Shard(0, 4), (6, 4))
    assert torch.equal(whole, torch.stack((tensors["more"], tensors["q"])))


def test_weights_are_rounded_to_the_storage_dtype_and_returned_in_the_compute_dtype(
    tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    reader = WeightReader(tmp_path, torch.bfloat16, torch.float32, CPU)
    norm = reader.tensor("norm", (2,))
    assert norm.dtype == torch.float32
    assert torch.equal(norm, tensors["norm"].bfloat16().float())
    half = reader.tensor("half", (6, 4))
    assert torch.equal(half, tensors["half"].float())
    assert reader.owned_bytes == 2 * 4 + 24 * 2  # sizes in the files
    reader.close()


def test_tensors_with_different_dtypes_are_joined_without_rounding(tmp_path: Path) -> None:
    values = torch.rand(6, 4)
    tensors = {"q": values.half(), "k": values.bfloat16(), "v": values}
    save_file(tensors, tmp_path / "model.safetensors")
    reader = WeightReader(tmp_path, torch.float32, None, CPU)
    names, rows = ["q", "k"], [Shard(1, 6), Shard(0, 2)]
    (block,) = reader.row_blocks(names, rows, (12, 4))
    assert block.dtype == torch.float32
    assert torch.equal(block, torch.cat((tensors["q"][1:].float(), tensors["k"][:2].float())))
    assert reader.owned_bytes == 7 * 4 * 2
    columns = reader.stacked_columns(["v", "q", "k"], Shard(1, 3), (6, 4))
    assert torch.equal(columns, torch.stack([tensors[name].float()[:, 1:3] for name in "vqk"]))
    reader.close()


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda r: r.tensor("norm", (3,)), "'norm' has shape 2, config.json says 3"),
        (lambda r: r.columns("q", Shard(0, 2), (6, 5)), "'q' has shape 6x4, config.json says 6x5"),
        (lambda r: r.rows(["q"], [Shard(0, 2)], (6, 5)), "'q' has shape 6x4, config.json says 6x5"),
        (lambda r: r.rows(["norm"], [Shard(0, 2)], (6, 4)), "'norm' has shape 2, config.json says 6x4"),
        (lambda r: r.rows(["q", "k", "v"], [Shard(0, 2)] * 3, (10, 4)), "no tensor 'v'"),
        (lambda r: r.rows(["q", "k"], [Shard(0, 2)] * 2, (9, 4)), "of 9 rows .* 'q' has 6 and 'k' has 2"),
        (lambda r: r.rows(["q", "k"], [Shard(0, 5), Shard(0, 3)], (8, 4)), "'k' has only 2 rows"),
        (lambda r: r.rows(["q"], [Shard(0, 2)], (7, 4)), "'q' has shape 6x4, config.json says 7x4"),
        (lambda r: r.rows(["q"], [Shard(0, 1), Shard(5, 7)], (6, 4)), "'q' has only 6 rows"),
        (
            lambda r: r.stacked_columns(["q", "k"], Shard(0, 2), (6, 4)),
            "'k' has shape 2x4, config.json says 6x4",
        ),
    ],
)
def test_shapes_that_do_not_match_the_config_are_refused(
    reader: WeightReader, read: Callable[[WeightReader], object], message: str
) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        read(reader)
    assert reader.owned_bytes == 0


MISMATCHES: list[tuple[str, dict[str, int | bool]]] = [
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"vocab_size": 96}),
    ("llama", {"intermediate_size": 51}),
    ("llama", {"hidden_size": 32}),
    ("llama", {"head_dim": 8}),
    ("llama", {"num_hidden_layers": 3}),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"tie_word_embeddings": False}),
    ("qwen3", {"head_dim": 4}),
    ("mixtral", {"num_local_experts": 5}),
    ("mixtral", {"num_local_experts": 3}),
    ("mixtral", {"intermediate_size": 29}),
    ("falcon-7b", {"multi_query": False}),
    ("falcon-7b", {"new_decoder_architecture": True, "num_kv_heads": 1}),
    ("falcon-7b", {"bias": True}),
    ("falcon-7b", {"ffn_hidden_size": 51}),
    ("falcon-40b", {"num_ln_in_parallel_attn": 1}),
    ("falcon-40b", {"num_kv_heads": 5}),
]


@pytest.mark.parametrize(("kind", "changes"), MISMATCHES)
def test_a_config_that_does_not_match_the_weights_is_refused(
    kind: str, changes: dict[str, int | bool], tmp_path: Path
) -> None:
    save_model(tmp_path, kind)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(BadCheckpoint, match=r"tensor"):
        make_runner(tmp_path)
