"""The workloads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from container.measure.bench.workload import load_tokenizer
from tests.bench.workloads import DEFAULT, SHAPES, warm_up_seed
from tests.support.tokenizers import save_gpt2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_gpt2(folder, as_json=True)
    return load_tokenizer(Path(folder))


def test_prompts_change_with_the_seed_and_lengths_do_not(tokenizer: Tokenizer) -> None:
    first, again, other = (SHAPES["burst"].requests(tokenizer, seed) for seed in (1, 1, 2))
    assert first == again
    assert [one.prompt for one in first] != [one.prompt for one in other]
    assert [one.output_tokens for one in first] == [one.output_tokens for one in other]


def test_the_burst_has_drawn_lengths_and_the_others_fixed_ones(tokenizer: Tokenizer) -> None:
    burst = SHAPES["burst"].requests(tokenizer, 1)
    assert len({one.output_tokens for one in burst}) > 16
    assert max(one.output_tokens for one in burst) <= 256
    assert {one.output_tokens for one in SHAPES["s1"].requests(tokenizer, 1)} == {128}


@pytest.mark.parametrize("name", SHAPES)
def test_prompts_have_exactly_the_tokens_and_no_warm_up_asks_them(tokenizer: Tokenizer, name: str) -> None:
    shape = SHAPES[name]
    requests = shape.requests(tokenizer, 1)
    assert {len(tokenizer.encode(one.prompt).ids) for one in requests} == {shape.prompt_tokens}
    short = shape.warm_up()
    assert short.num_requests == shape.num_users
    assert {one.output_tokens for one in short.requests(tokenizer, 1)} == {min(16, shape.output_tokens)}
    warm_up = short.requests(tokenizer, warm_up_seed(1))
    assert not {one.prompt for one in warm_up} & {one.prompt for one in requests}


def test_the_one_for_trying_things_out_is_not_run_unless_it_is_asked_for() -> None:
    assert DEFAULT == ("s1", "s2", "burst", "single")
