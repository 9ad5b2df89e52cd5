"""A tiny model of engines as processes, and what transformers makes of it."""

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
    """A prompt, and its greedy continuation by transformers' `generate`."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> float:
    """The status board's clock stands still at this time: no heartbeat grows old while the machine is busy."""
    now = 1000.0
    monkeypatch.setattr("engines.health.time", SimpleNamespace(monotonic=lambda: now))
    return now


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def answers(tiny_llama: Path) -> list[Answer]:
    """12 prompts of 1 to 90 tokens, `NUM_TOKENS` more for each."""
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
