"""Workloads: prompts have exact lengths, depend on the seed, and share no prefixes."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from container.measure.bench.lengths import Exponential, Fixed, Uniform
from container.measure.bench.workload import BenchError, Workload, load_tokenizer, make_requests
from lmi_server.text.tokenizer import TextModel
from tests.support.examples import examples

SPREAD = Workload(Uniform.around(40), Exponential(30, 120), 40)
WORK = Workload(Fixed(32), Fixed(7), num_requests=20)


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer with a BOS token before every text, as Llama's has."""
    changed = Tokenizer.from_str(tokenizer.to_str())
    changed.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return changed


def letters() -> Tokenizer:
    """A tokenizer with one token per character."""
    tokenizer = Tokenizer(models.WordLevel({chr(code): code - 32 for code in range(32, 127)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@examples(25)
@given(
    prompt_tokens=st.integers(16, 300),
    num_requests=st.integers(1, 12),
    seed=st.integers(-5, 2**40),
    kind=st.sampled_from(["tiny", "bos", "letters"]),
    spread=st.booleans(),
)
def test_every_prompt_has_exactly_the_requested_tokens(
    tiny_tokenizer: Tokenizer, prompt_tokens: int, num_requests: int, seed: int, kind: str, spread: bool
) -> None:
    tokenizer = {"tiny": tiny_tokenizer, "bos": with_bos(tiny_tokenizer), "letters": letters()}[kind]
    prompts = Uniform.around(prompt_tokens) if spread else Fixed(prompt_tokens)
    work = Workload(prompts, Fixed(5), num_requests)
    requests = make_requests(work, tokenizer, seed)
    lengths = [request.prompt_tokens for request in requests]
    assert [len(tokenizer.encode(request.prompt).ids) for request in requests] == lengths
    assert [request.index for request in requests] == list(range(num_requests))
    if spread:
        assert prompt_tokens // 2 <= min(lengths) <= max(lengths) <= 1.5 * prompt_tokens + 1
    else:
        assert {*lengths} == {prompt_tokens}
    assert {request.output_tokens for request in requests} == {5}


def test_spread_lengths_are_distributed_as_described() -> None:
    prompts = SPREAD.prompts.draw(5000, random.Random(0))
    assert (min(prompts), max(prompts)) == (20, 60)
    assert statistics.fmean(prompts) == pytest.approx(40, rel=0.02)
    outputs = SPREAD.outputs.draw(5000, random.Random(1))
    assert (min(outputs), max(outputs)) == (1, 120)
    assert statistics.fmean(outputs) == pytest.approx(30, rel=0.03)
    # Less than the mean, because of the limit: 0.87 means.
    assert statistics.stdev(outputs) == pytest.approx(0.87 * 30, rel=0.05)
    assert set(Exponential(2, 4).draw(100, random.Random(0))) == {1, 2, 3, 4}
    assert set(Exponential(1, 4).draw(100, random.Random(0))) == {1}


@pytest.mark.parametrize("longest", [32, 128, 512])
def test_the_mean_of_a_limited_distribution_is_that_of_its_counts(longest: int) -> None:
    whole = Exponential(128, 100_000)
    kept = [count for count in whole.draw(200_000, random.Random(0)) if count <= longest]
    limited = whole.at_most(longest)
    assert limited.mean == pytest.approx(statistics.fmean(kept), rel=0.02)
    assert statistics.fmean(limited.draw(20_000, random.Random(1))) == pytest.approx(limited.mean, rel=0.02)


def test_prompts_have_different_first_tokens_while_there_are_enough(tiny_tokenizer: Tokenizer) -> None:
    requests = make_requests(WORK, tiny_tokenizer, 0)
    first_tokens = {tiny_tokenizer.encode(request.prompt).ids[0] for request in requests}
    assert len(first_tokens) == len(requests)


def test_prompts_differ_in_the_first_two_words_when_first_tokens_run_out(tiny_tokenizer: Tokenizer) -> None:
    requests = make_requests(replace(WORK, num_requests=600), tiny_tokenizer, 0)
    assert len({tuple(request.prompt.split()[:2]) for request in requests}) == 600


def test_prompts_depend_only_on_prompt_options_and_the_seed(tiny_tokenizer: Tokenizer) -> None:
    first = make_requests(SPREAD, tiny_tokenizer, 0)
    assert make_requests(SPREAD, tiny_tokenizer, 0) == first
    longer = make_requests(replace(SPREAD, outputs=Exponential(50, 200)), tiny_tokenizer, 0)
    assert [one.prompt for one in longer] == [one.prompt for one in first]
    others = make_requests(SPREAD, tiny_tokenizer, 1)
    assert [one.output_tokens for one in others] != [one.output_tokens for one in first]
    assert not {one.prompt for one in others} & {one.prompt for one in first}


@pytest.mark.model
@pytest.mark.parametrize("prompt_tokens", [1, 32, pytest.param(2000, marks=pytest.mark.long)])
def test_the_server_counts_the_same_prompt_tokens_for_the_bundled_model(
    bundled_model: Path, prompt_tokens: int
) -> None:
    server = TextModel.from_folder(bundled_model)
    work = Workload(Fixed(prompt_tokens), Fixed(8), 64)
    requests = make_requests(work, load_tokenizer(bundled_model), 3)
    ids = [server.encode(request.prompt) for request in requests]
    assert {len(one) for one in ids} == {prompt_tokens}
    assert len({one[0] for one in ids}) == 64


def test_a_prompt_too_short_for_its_special_tokens_is_refused(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(BenchError, match="cannot build prompts of 1 tokens"):
        make_requests(replace(WORK, prompts=Fixed(1)), with_bos(tiny_tokenizer), 0)


def test_a_tokenizer_is_read_from_a_folder_or_file_without_truncation_and_padding(
    tiny_model: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(tmp_path / "truncating.json"))
    loaded = load_tokenizer(tmp_path / "truncating.json")
    text = "one two three four five six seven"
    assert loaded.encode(text).ids == load_tokenizer(tiny_model / "tokenizer.json").encode(text).ids
    assert 4 < len(loaded.encode(text).ids) < 40


def test_a_tokenizer_is_loaded_once_for_all_rounds(tiny_model: Path) -> None:
    """Each copy takes megabytes that the process does not return."""
    assert load_tokenizer(tiny_model) is load_tokenizer(tiny_model)


def test_missing_and_invalid_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"tokenizer\.json: no such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BenchError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
