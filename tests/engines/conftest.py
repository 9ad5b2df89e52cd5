"""A tiny model for engine processes, and the outputs of transformers for it."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.support.engine_process import VOCAB_SIZE, save_tiny_llama

NUM_TOKENS = 16


class Answer(NamedTuple):
    """A prompt and its greedy continuation by `generate` of transformers."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@pytest.fixture
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> float:
    """Stop the clock of the status board at the returned time, so that no heartbeat gets stale on a busy machine."""
    now = 1000.0
    monkeypatch.setattr("engines.health.time", SimpleNamespace(monotonic=lambda: now))
    return now


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers
        save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def answers(tiny_llama: Path) -> list[Answer]:
    """12 prompts of 1 to 90 tokens, each with `NUM_TOKENS` output tokens."""
    import torch
    from transformers import LlamaForCausalLM

    from tests.support.tiny_architectures import generate_alone

    numbers = random.Random(5)
    lengths = [1, 2, 7, 8, 9, 15, 16, 17, 33, 40, 64, 90]
    prompts = [[numbers.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
        return [Answer(tuple(one), tuple(generate_alone(model, one, NUM_TOKENS))) for one in prompts]
