"""A model with a sliding window in all layers: tokens equal those of transformers, blocks are limited by the window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.core_lab import CoreLab, Mode, greedy, run_all
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import VOCAB_SIZE, load_oracle, save_model

WINDOW, BLOCK_SIZE, NUM_NEW = 16, 4, 20
LENGTHS = (4 * WINDOW, 3 * WINDOW + 5, 4 * WINDOW, 7, 3, 1, 6, 2)
MODES = [
    Mode(max_num_batched_tokens=24),
    Mode(prefix_caching=False, chunked_prefill=False),
    # Blocks run out, so sequences are preempted and recomputed.
    Mode(max_num_batched_tokens=24, num_blocks=22),
    Mode("guaranteed_no_evict", max_prefill_tokens=9),
    Mode("guaranteed_no_evict", paged=False, prefix_caching=False),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistral")
    save_model(folder, "mistral", sliding_window=WINDOW, max_position_embeddings=128)
    return folder


@pytest.fixture(scope="module")
def lab(model: Path, tmp_path_factory: pytest.TempPathFactory) -> CoreLab:
    folder = tmp_path_factory.mktemp("board")
    return CoreLab(model, folder, block_size=BLOCK_SIZE, num_blocks=64, max_model_len=128)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = fresh_generator()
    prompts = [integers(generator, 2, VOCAB_SIZE, length) for length in LENGTHS]
    prompts[2][:WINDOW] = prompts[0][:WINDOW]
    return prompts


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    oracle = load_oracle(model, "fp32")
    return [
        oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NUM_NEW,
            min_new_tokens=NUM_NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tokens_equal_those_of_transformers(
    lab: CoreLab, mode: Mode, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    running = lab.start(mode)
    requests = [greedy(f"r{i}", prompt, NUM_NEW) for i, prompt in enumerate(prompts)]
    # A sibling: it shares the prompt of the first request.
    requests.append(greedy("twin", prompts[0], NUM_NEW, same_prompt_as="r0"))
    found = run_all(running, requests, gap=2.0)
    assert list(found.values()) == [*expected, expected[0]]
    if mode.num_blocks is not None:
        assert running.scheduler.num_preemptions


@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_a_long_prompt_holds_the_blocks_of_one_window_and_one_page(
    lab: CoreLab, chunk: int, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """While a chunk is computed, the blocks of the chunk are held as well."""
    running = lab.start(Mode(max_num_batched_tokens=chunk, max_prefill_tokens=chunk))
    running.core.add(greedy("r", prompts[0], NUM_NEW))
    tokens: list[int] = []
    while running.core.has_work:
        in_chunk = 1 if tokens else chunk
        tokens += [token for output in running.core.step() for token in output.token_ids]
        running.scheduler.check()
        held = running.blocks.num_used
        assert held <= -(-(WINDOW + in_chunk - 1) // BLOCK_SIZE) + 1
    assert tokens == expected[0]
    assert held == 0


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_a_cache_of_window_size_is_enough_for_long_prompts(
    model: Path, tmp_path: Path, policy: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """14 blocks of 4 tokens hold two sequences with a window of 16 and a chunk of 9. `max_model_len` is 32 blocks."""
    lab = CoreLab(model, tmp_path, block_size=4, num_blocks=14, max_model_len=128, max_step_tokens=9)
    running = lab.start(Mode(policy, max_prefill_tokens=9, max_num_batched_tokens=9))
    found = run_all(running, [greedy(f"r{i}", prompt, NUM_NEW) for i, prompt in enumerate(prompts)])
    assert list(found.values()) == expected
    if policy == "guaranteed_no_evict":
        assert running.scheduler.num_preemptions == 0
