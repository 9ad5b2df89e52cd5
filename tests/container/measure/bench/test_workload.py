"""Prompts are exact, seeded, and have nothing in common at their beginnings."""

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
    """The same tokenizer, but it puts a token before every text, as Llama's does."""
    changed = Tokenizer.from_str(tokenizer.to_str())
    changed.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return changed


def letters() -> Tokenizer:
    """No word is one token: every character is."""
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
)
def test_every_prompt_has_exactly_its_tokens(
    tiny_tokenizer: Tokenizer, prompt_tokens: int, num_requests: int, seed: int, kind: str
) -> None:
    tokenizer = {"tiny": tiny_tokenizer, "bos": with_bos(tiny_tokenizer), "letters": letters()}[kind]
    work = Workload(Fixed(prompt_tokens), Fixed(5), num_requests)
    requests = make_requests(work, tokenizer, seed)
    assert [len(tokenizer.encode(request.prompt).ids) for request in requests] == [
        prompt_tokens
    ] * num_requests
    assert [request.index for request in requests] == list(range(num_requests))
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(prompt_tokens, 5)}


def test_prompts_of_spread_lengths_are_exact_too(tiny_tokenizer: Tokenizer) -> None:
    requests = make_requests(SPREAD, tiny_tokenizer, 0)
    wanted = [request.prompt_tokens for request in requests]
    assert [len(tiny_tokenizer.encode(request.prompt).ids) for request in requests] == wanted
    assert 20 <= min(wanted) < max(wanted) <= 60
    assert len({request.output_tokens for request in requests}) > 20


def test_spread_lengths_are_distributed_as_described() -> None:
    prompts = SPREAD.prompts.draw(5000, random.Random(0))
    assert (min(prompts), max(prompts)) == (20, 60)
    assert statistics.fmean(prompts) == pytest.approx(40, rel=0.02)
    answers = SPREAD.outputs.draw(5000, random.Random(1))
    assert (min(answers), max(answers)) == (1, 120)
    # An exponential distribution that is cut at 4 means has 0.925 of the mean, and 0.82 of it as deviation.
    assert statistics.fmean(answers) == pytest.approx(0.925 * 30, rel=0.05)
    assert statistics.stdev(answers) == pytest.approx(0.82 * 30, rel=0.05)
    assert set(Exponential(1, 4).draw(100, random.Random(0))) == {1, 2, 3, 4}


def test_each_token_count_depends_on_its_own_mean_alone(tiny_tokenizer: Tokenizer) -> None:
    first = make_requests(SPREAD, tiny_tokenizer, 0)
    longer = make_requests(replace(SPREAD, outputs=Exponential(50, 200)), tiny_tokenizer, 0)
    assert [one.prompt for one in longer] == [one.prompt for one in first]
    others = make_requests(SPREAD, tiny_tokenizer, 1)
    assert [one.output_tokens for one in others] != [one.output_tokens for one in first]


def test_no_two_prompts_begin_alike_while_the_tokenizer_has_beginnings(tiny_tokenizer: Tokenizer) -> None:
    requests = make_requests(WORK, tiny_tokenizer, 0)
    firsts = {tiny_tokenizer.encode(request.prompt).ids[0] for request in requests}
    assert len(firsts) == len(requests)


def test_prompts_differ_early_when_there_are_more_of_them_than_beginnings(tiny_tokenizer: Tokenizer) -> None:
    requests = make_requests(replace(WORK, num_requests=600), tiny_tokenizer, 0)
    assert len({tuple(request.prompt.split()[:2]) for request in requests}) == 600


def test_the_same_workload_gives_the_same_prompts_and_another_seed_others(tiny_tokenizer: Tokenizer) -> None:
    first = make_requests(WORK, tiny_tokenizer, 0)
    assert make_requests(WORK, tiny_tokenizer, 0) == first
    # What does not concern the prompts does not change them.
    other = make_requests(replace(WORK, outputs=Fixed(9)), tiny_tokenizer, 0)
    assert [request.prompt for request in other] == [request.prompt for request in first]
    others = make_requests(WORK, tiny_tokenizer, 1)
    assert not {request.prompt for request in others} & {request.prompt for request in first}


@pytest.mark.model
@pytest.mark.parametrize("prompt_tokens", [1, 32, pytest.param(2000, marks=pytest.mark.long)])
def test_prompts_for_the_bundled_model_are_what_its_server_counts(
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


def test_more_prompts_than_there_are_is_refused(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(BenchError, match=r"cannot build .* different prompts of 1 tokens"):
        make_requests(replace(WORK, prompts=Fixed(1), num_requests=5000), tiny_tokenizer, 0)


def test_a_tokenizer_is_read_from_its_folder_or_its_file_and_never_cuts(
    tiny_model: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(tmp_path / "cutting.json"))
    read = load_tokenizer(tmp_path / "cutting.json")
    text = "one two three four five six seven"
    assert read.encode(text).ids == load_tokenizer(tiny_model / "tokenizer.json").encode(text).ids
    assert 4 < len(read.encode(text).ids) < 40


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"tokenizer\.json: no such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BenchError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
