"""A tiny model, what transformers makes of it, and engine processes that end with their test."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.config import MpiEngineConfig
from tests.support.engine_process import VOCAB_SIZE, EngineProcess, save_tiny_llama

NUM_TOKENS = 16
StartEngine = Callable[[MpiEngineConfig], EngineProcess]


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt, and its greedy continuation by transformers' `generate`."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _generate(tiny_llama)


def _generate(folder: Path) -> list[Answer]:
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    numbers = random.Random(5)
    lengths = [1, 2, 7, 8, 9, 15, 16, 17, 33, 40, 64, 90]
    answers = []
    for length in lengths:
        prompt = [numbers.randrange(VOCAB_SIZE) for _ in range(length)]
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            result = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=NUM_TOKENS,
                pad_token_id=0,
            )
        answers.append(Answer(tuple(prompt), tuple(result[0, length:].tolist())))
    return answers


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Start engines that end with the test. Each is ready when this returns."""
    engines: list[EngineProcess] = []

    def start(config: MpiEngineConfig) -> EngineProcess:
        engines.append(EngineProcess(config))
        engines[-1].wait_ready()
        return engines[-1]

    yield start
    for engine in engines:
        engine.destroy()
