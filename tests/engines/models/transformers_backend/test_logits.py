"""Transformers modules in the model runner, compared with transformers. `make verify` runs all TRANSFORMERS_MODELS."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import conversion_mapping
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming

from engines.models.byte_ranges import FolderRanges
from engines.models.tensor_files import BadCheckpoint
from tests.engines.models.conftest import store_head
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.representatives import representatives
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.transformers_models import (
    TABLES,
    differences,
    save_transformers_model,
    transformers_runner,
)

FEW = (
    "starcoder2-window",
    "olmo2",
    "stablelm",
    "phi-2",
    "cohere-plus",
    "glm4",
    "exaone4",
    "hunyuan-alpha",
    "minicpm3",
    "qwen2_moe",
    "qwen2_moe-window",
    "phimoe",
    "afmoe",
    "biogpt",
)


def _check_logits(folder: Path, degree: int = 1) -> None:
    """Assert that logits and the likeliest tokens are those of transformers."""
    worst, same = differences(folder, degree)
    assert worst < 1e-4
    assert same


@pytest.mark.parametrize("name", FEW)
def test_logits_match_transformers(name: str, tmp_path: Path) -> None:
    save_transformers_model(tmp_path, name)
    _check_logits(tmp_path)


@pytest.mark.parametrize("model_type", ["mistral", "ministral"])
def test_a_mistral_with_layer_types_is_a_ministral(model_type: str, tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "ministral")
    file = tmp_path / "config.json"
    changes = {"architectures": ["MistralForCausalLM"], "model_type": model_type}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    _check_logits(tmp_path)


@pytest.mark.parametrize(
    ("name", "degree"),
    [
        ("cohere-plus", 2),
        ("olmo3", 4),
        ("starcoder2", 3),
        ("qwen2_moe", 3),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("glm4", 2), ("olmo2", 2), ("olmoe", 2), ("smollm3", 4))
        ),
    ],
)
def test_logits_of_several_ranks_match_transformers(name: str, degree: int, tmp_path: Path) -> None:
    """With four ranks and three KV heads, two ranks hold the same head. OLMo's norms cover the heads of all ranks."""
    save_transformers_model(tmp_path, name)
    _check_logits(tmp_path, degree)


def test_experts_stored_in_one_tensor_are_split_over_ranks(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "olmoe")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        experts = [
            {kind: tensors.pop(f"{prefix}{number}.{kind}_proj.weight") for kind in ("gate", "up", "down")}
            for number in range(4)
        ]
        halves = [torch.cat((expert["gate"], expert["up"])) for expert in experts]
        tensors[f"{prefix}gate_up_proj"] = torch.stack(halves)
        tensors[f"{prefix}down_proj"] = torch.stack([expert["down"] for expert in experts])
    save_file(tensors, file, {"format": "pt"})
    _check_logits(tmp_path, 2)


@pytest.mark.usefixtures("native_kernels")
def test_logits_are_bitwise_equal_alone_and_in_a_batch(tmp_path: Path) -> None:
    """Widths are multiples of the SIMD width, as in all real models: torch computes remainders with other code."""
    save_transformers_model(tmp_path, "starcoder2", hidden_size=96, intermediate_size=64)
    runner = transformers_runner(tmp_path)
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (40, 17, 9)]
    chunks = [[11, 3, 20], [1, 16], [5]]
    batched = run_plans(runner, plans_in_chunks(prompts, TABLES, chunks))
    for i, prompt in enumerate(prompts):
        alone = run_plans(runner, plans_in_chunks([prompt], [TABLES[i]], [[len(prompt)]]))
        assert torch.equal(batched[i, len(prompt) - 1], alone[0, len(prompt) - 1])


@pytest.mark.parametrize("name", ["phi-1", "starcoder2"])
def test_dummy_weights_need_no_files(name: str, tmp_path: Path) -> None:
    save_transformers_model(tmp_path, name)
    (tmp_path / "model.safetensors").unlink()
    plans = plans_in_chunks([[5, 6, 7]], TABLES, [[2]])
    first, again = (run_plans(transformers_runner(tmp_path, load_format="dummy"), plans) for _ in range(2))
    assert torch.equal(first[0, 2], again[0, 2])
    assert first[0, 2].std() > 0


@pytest.mark.usefixtures("native_kernels")
def test_matrices_are_quantized(tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "starcoder2")
    plans = plans_in_chunks([[5, 6, 7, 8]], TABLES, [[4]])
    exact = run_plans(transformers_runner(tmp_path), plans)[0, 3]
    rounded = run_plans(transformers_runner(tmp_path, quantize="int8"), plans)[0, 3]
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.2, atol=0.5)


def _rename(folder: Path, new_name: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    save_file({new_name(name): tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})


def test_tensor_names_that_transformers_renames_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base model's prefix is missing too, as in checkpoints of models without a head."""
    save_transformers_model(tmp_path, "olmo2")
    renaming = WeightRenaming(r"\.attn\.", ".self_attn.")
    original = conversion_mapping.get_checkpoint_conversion_mapping
    monkeypatch.setattr(
        conversion_mapping,
        "get_checkpoint_conversion_mapping",
        lambda kind: [deepcopy(renaming)] if kind == "olmo2" else original(kind),
    )
    _rename(tmp_path, lambda name: name.removeprefix("model.").replace(".self_attn.", ".attn."))
    assert "layers.0.attn.q_proj.weight" in load_file(tmp_path / "model.safetensors")
    _check_logits(tmp_path)


def test_a_checkpoint_that_transformers_would_convert_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_transformers_model(tmp_path, "olmo2")
    halves = WeightConverter(
        "mlp.gate_up_proj.weight", ["mlp.gate_proj.weight", "mlp.up_proj.weight"], [Chunk(dim=0)]
    )
    monkeypatch.setattr(
        conversion_mapping, "get_checkpoint_conversion_mapping", lambda kind: [deepcopy(halves)]
    )
    _rename(tmp_path, lambda name: name.replace("gate_proj", "gate_up_proj"))
    with pytest.raises(
        BadCheckpoint, match=r"gate_up_proj.weight' is not stored in the layout of Olmo2ForCausalLM"
    ):
        transformers_runner(tmp_path)


class _Elsewhere(FolderRanges):
    """Reads weights from another folder, as if from a network."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.parent / "whole")


def test_weights_are_streamed(tmp_path: Path) -> None:
    whole, headers = tmp_path / "whole", tmp_path / "headers"
    save_transformers_model(whole, "glm4")
    headers.mkdir()
    (headers / "config.json").write_bytes((whole / "config.json").read_bytes())
    content = (whole / "model.safetensors").read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    (headers / "model.safetensors").write_bytes(content[:length] + bytes(len(content) - length))
    streams = {"load_format": "stream", "byte_ranges": f"{__name__}:_Elsewhere"}
    plans = plans_in_chunks([[5, 6, 7]], TABLES, [[2]])
    streamed = run_plans(transformers_runner(headers, **streams), plans)[0, 2]
    assert torch.equal(streamed, run_plans(transformers_runner(whole), plans)[0, 2])


@pytest.mark.parametrize(
    ("stored", "degree"),
    representatives(
        product(["both", "both equal", "head"], [1, 2]), [("both", 2), ("both equal", 1), ("head", 1)]
    ),
)
def test_a_stored_head_is_used_even_if_the_config_ties_it(stored: str, degree: int, tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "cohere")
    store_head(tmp_path, "lm_head.weight", "model.embed_tokens.weight", stored)
    _check_logits(tmp_path, degree)
