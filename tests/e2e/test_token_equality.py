"""Greedy tokens of batched prompts equal transformers exactly. `make verify` covers 32 prompts and more tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.equality import compare
from tests.support.oracle import FEW_PROMPTS, FEW_TOKENS, few_answers

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def test_six_prompts_at_once_equal_transformers(client: Client, bundled_model: Path) -> None:
    answers = few_answers(bundled_model, *FEW_PROMPTS)
    with ThreadPoolExecutor(len(answers)) as pool:
        calls = [
            pool.submit(
                client.stream if number % 2 else client.generate, answer.text, max_new_tokens=FEW_TOKENS
            )
            for number, answer in enumerate(answers)
        ]
        compared = [compare(answer, call.result()) for answer, call in zip(answers, calls, strict=True)]
    assert [comparison.difference for comparison in compared] == [""] * len(FEW_PROMPTS)
