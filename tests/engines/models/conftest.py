"""Helpers for tests of models: config.json files, ranks that only load, and a requirement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.models.architectures import read_config
from engines.models.config import ModelConfig
from engines.parallel import Communicator
from lmi_kernels.cpu import shared_team
from tests.support.published_models import PUBLISHED
from tests.support.tiny_models import oracle_logits

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MISTRAL = PUBLISHED["llama-3-8b"] | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 32000,
}
MIXTRAL = MISTRAL | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}


def write_and_read(folder: Path, data: Any) -> ModelConfig:
    """Write a config.json, and read it."""
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return read_config(folder)


def store_head(folder: Path, head: str, embedding: str, stored: str) -> None:
    """Store a head in a checkpoint with tied weights.

    stored: `both` (their last rows differ), `both equal`, or `head` without the embedding.
    """
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[head] = tensors[embedding].clone()
    if stored == "both":
        tensors[head][-1] *= -2
    if stored == "head":
        del tensors[embedding]
    save_file(tensors, file, {"format": "pt"})


def assert_logits_match(
    found: Mapping[tuple[int, int], torch.Tensor], oracle: Any, prompts: Sequence[Sequence[int]]
) -> None:
    """Assert that logits and argmax equal the oracle's. found: by (prompt, position), with all last ones."""
    expected = [oracle_logits(oracle, prompt) for prompt in prompts]
    assert {(i, len(prompt) - 1) for i, prompt in enumerate(prompts)} <= set(found)
    for (i, position), logits in found.items():
        torch.testing.assert_close(logits, expected[i][position], rtol=1e-4, atol=1e-4)
        assert int(logits.argmax()) == int(expected[i][position].argmax())


class LoneRank(Communicator):
    """One of several ranks, for loading only, where ranks merely agree on the size of the cache."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def share(self, num_bytes: int) -> list[torch.Tensor]:
        return [torch.zeros(num_bytes, dtype=torch.uint8)] * self.world_size  # so it waits for no other rank


@pytest.fixture
def native_kernels() -> None:
    """Skip the test if native kernels are not built."""
    if shared_team() is None:
        pytest.skip("native kernels are not built")
