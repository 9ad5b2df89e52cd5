from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from engines.core import SampledToken, SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from lmi_kernels import choose_tokens
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.randomness import FULL
from tests.support.representatives import representatives
from tests.support.sampling_oracle import processed
from tests.support.seeds import fresh_generator, generator_from, integers

VOCAB = 101
CPU = torch.device("cpu")


def _row(name: str, p: SamplingParams, *tokens: int) -> SamplingRow:
    """Make a row whose tokens are all prompt tokens."""
    return SamplingRow(name, p, tokens, len(tokens))


def _logits(num_rows: int, seed: int, vocab_size: int = VOCAB) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=generator_from(seed)) * 4


def _sample_alone(logits: torch.Tensor, row: SamplingRow) -> SampledToken:
    (sampled,) = Sampler(logits.shape[-1], CPU).sample(logits[None], [row])
    return sampled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_is_argmax(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 49152, generator=fresh_generator()).to(dtype)
    logits[3, 7:40_000:101] = 50.0  # ties: the lowest id wins
    batch = [_row(f"r{i}", SamplingParams(1), 1, 2) for i in range(9)]
    sampled = Sampler(49152, CPU).sample(logits, batch)
    assert [s.token_id for s in sampled] == logits.argmax(-1).tolist()
    assert sampled[3].token_id == 7
    assert all(s == SampledToken(s.token_id) for s in sampled)
    mixed = Sampler(49152, CPU).sample(logits, [*batch[:8], _row("x", SamplingParams(1, temperature=1.0), 1)])
    assert mixed[:8] == sampled[:8]


def _chi_square(counts: Counter[int], probabilities: torch.Tensor, draws: int) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom. Tokens expected fewer than 5 times share a cell."""
    expected = probabilities * draws
    rare = [i for i in range(len(expected)) if 0 < float(expected[i]) < 5]
    cells = [(counts[i], float(expected[i])) for i in range(len(expected)) if float(expected[i]) >= 5]
    if rare:
        cells.append((sum(counts[i] for i in rare), sum(float(expected[i]) for i in rare)))
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in cells), len(cells) - 1


_DRAWN: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.2},
    {"typical_p": 0.7},
    {"repetition_penalty": 1.5, "presence_penalty": 0.4, "frequency_penalty": -0.3},
    {"logit_bias": ((2, 1.0), (3, -0.5)), "bad_words": ((4,), (3, 6)), "min_new_tokens": 2},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.5},
)


@pytest.mark.parametrize(
    ("varied", "changes"),
    representatives(
        product(["seed", "position"], _DRAWN),
        [*product(["seed"], _DRAWN), ("position", _DRAWN[0]), ("position", _DRAWN[-1])],
    ),
)
def test_tokens_are_drawn_with_their_probabilities(varied: str, changes: dict[str, Any]) -> None:
    vocab_size, draws = 13, (12_000 if FULL else 4_000) if varied == "seed" else 2_000
    logits = torch.randn(vocab_size, generator=generator_from(11)) * 1.5
    p = SamplingParams(1, **({"temperature": 1.0, "stop_token_ids": (0,)} | changes))
    seen, num_prompt = [3, 5, 3], 2
    if varied == "seed":
        batch = [SamplingRow(f"r{i}", replace(p, seed=i), seen, num_prompt) for i in range(draws)]
    else:
        # One seed and growing prompts that repeat the same three tokens, so that penalties stay the same.
        prompts = [seen * (i + 1) for i in range(draws)]
        batch = [SamplingRow(f"r{i}", replace(p, seed=99), x, len(x) - 1) for i, x in enumerate(prompts)]
    sampled: list[SampledToken] = []
    sampler = Sampler(vocab_size, CPU)
    for start in range(0, draws, 2000):
        part = batch[start : start + 2000]
        sampled += sampler.sample(logits.expand(len(part), -1), part)
    counts = Counter(s.token_id for s in sampled)
    probabilities = processed(logits, SamplingRow("x", p, seen, num_prompt)).double().softmax(-1)
    assert all(float(probabilities[token]) > 0 for token in counts)
    statistic, freedom = _chi_square(counts, probabilities, draws)
    # Seeds are fixed, so the test never fails by chance. Any correct generator stays within five deviations.
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 1


@pytest.mark.parametrize("place", ["first", "last", "between"])
def test_tokens_of_probability_zero_are_never_drawn(place: str) -> None:
    logits = torch.full((VOCAB,), -2000.0)  # exp underflows to 0 although the logits are finite
    likely = {"first": [99, 100], "last": [0, 1], "between": [0, 50, 100]}[place]
    logits[likely] = 1.0
    batch = [_row(f"r{i}", SamplingParams(1, temperature=1.0, seed=i), i) for i in range(4000)]
    drawn = {s.token_id for s in Sampler(VOCAB, CPU).sample(logits.expand(4000, -1), batch)}
    assert drawn == set(likely)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_non_finite_logits_affect_only_their_row(bad: float, temperature: float) -> None:
    logits = _logits(5, 3)
    p = SamplingParams(1, temperature=temperature, top_k=20, top_p=0.9, repetition_penalty=1.2, logprobs=True)
    batch = [_row(f"r{i}", replace(p, seed=i, typical_p=0.9, top_logprobs=i), i, 2 * i) for i in range(5)]
    plain = [_row(f"r{i}", SamplingParams(1), i) for i in range(5)]
    for rows_of_batch in (batch, plain, [*plain[:2], batch[2], *plain[3:]]):
        healthy = Sampler(VOCAB, CPU).sample(logits, rows_of_batch)
        assert all(s.finite for s in healthy)
        for place in (0, VOCAB // 2, VOCAB - 1):
            damaged = logits.clone()
            damaged[2, place] = bad
            sampled = Sampler(VOCAB, CPU).sample(damaged, rows_of_batch)
            assert [s.finite for s in sampled] == [True, True, False, True, True]
            assert 0 <= sampled[2].token_id < VOCAB
            assert [s for i, s in enumerate(sampled) if i != 2] == [
                s for i, s in enumerate(healthy) if i != 2
            ]


def test_bad_words_do_not_hide_non_finite_logits() -> None:
    logits = _logits(2, 3)
    logits[:, 7] = math.nan
    banned = SamplingParams(1, bad_words=((7,),))
    sampled = Sampler(VOCAB, CPU).sample(logits, [_row("a", banned, 1), _row("b", SamplingParams(1), 1)])
    assert [s.finite for s in sampled] == [False, False]


def test_the_plan_is_renewed_when_parameters_change() -> None:
    logits, sampler = _logits(2, 3), Sampler(VOCAB, CPU)
    greedy = SamplingParams(1)
    for p in (greedy, replace(greedy, top_logprobs=2), greedy, replace(greedy, temperature=1.0, seed=1)):
        batch = [_row("a", greedy, 1), _row("b", p, 1)]
        assert sampler.sample(logits, batch) == [_sample_alone(logits[i], row) for i, row in enumerate(batch)]


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "top_p": 0.9, "typical_p": 0.9}]
)
def test_masked_tokens_are_no_error_while_one_token_remains(changes: dict[str, Any]) -> None:
    logits = _logits(4, 3)
    logits[:, 10:] = -math.inf
    logits[1] = -math.inf
    logits[2, 1:] = -math.inf
    # The last request bans the tokens that the model has not masked.
    bans = {"bad_words": tuple((i,) for i in range(10))}
    changed = [_row(f"r{i}", SamplingParams(1, **changes), 1) for i in range(3)]
    banned = _row("banned", SamplingParams(1, **changes, **bans), 1)
    sampled = Sampler(VOCAB, CPU).sample(logits, [*changed, banned])
    assert [s.finite for s in sampled] == [True, False, True, False]
    assert sampled[0].token_id < 10
    assert sampled[2].token_id == 0


@pytest.mark.parametrize(
    "changes", [{"temperature": 1e-300}, {"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-300}]
)
def test_extreme_parameters_select_the_most_likely_token(changes: dict[str, float]) -> None:
    logits = _logits(1, 8)
    for seed in range(20):
        row = _row("r", SamplingParams(1, seed=seed, **changes), 1)
        assert _sample_alone(logits[0], row).token_id == int(logits.argmax())


@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 1.5}, {"presence_penalty": 0.9, "frequency_penalty": 0.2}]
)
def test_penalties_follow_the_sequence_as_it_grows(changes: dict[str, Any]) -> None:
    generator = fresh_generator()
    sampler = Sampler(VOCAB, CPU)
    p = SamplingParams(40, **changes)
    tokens = {name: integers(generator, 0, VOCAB, 6) for name in "abc"}
    for step in range(25):
        # Sequences leave and rejoin the batch between steps. One returns with several new tokens.
        names = ["a", "b", "c"] if step % 3 else ["c", "a"]
        logits = torch.randn(len(names), VOCAB, generator=generator)
        logits[:, :5] += 9.0  # few likely tokens, so that all of them are penalized soon
        batch = [SamplingRow(name, p, tokens[name], 6) for name in names]
        for i, (row, sampled) in enumerate(zip(batch, sampler.sample(logits, batch), strict=True)):
            assert sampled.token_id == int(processed(logits[i], row).argmax())
            tokens[row.id].append(sampled.token_id)
        if step == 10:
            tokens["b"] += [0, 0, 0, 0, 1]


def test_forget_discards_the_state_of_a_sequence() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8] = 2.0, 1.5
    p = SamplingParams(1, repetition_penalty=2.0)
    assert sampler.sample(logits, [_row("a", p, 7)])[0].token_id == 8
    sampler.forget("a")
    sampler.forget("a")
    assert sampler.sample(logits, [_row("a", p, 9)])[0].token_id == 7


# Batch invariance: bit-identical results in any batch and any process


_VARIED_PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "logprobs": True},
    {"temperature": 0.7, "top_p": 0.9, "top_logprobs": 5},
    {"temperature": 3.0, "top_p": 0.999},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.02},
    {"temperature": 1.3, "typical_p": 0.9, "presence_penalty": 0.5},
    {
        "temperature": 0.9,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "top_p": 0.95,
        "top_logprobs": 20,
    },
    {"logprobs": True, "logit_bias": ((3, 1.5),), "bad_words": ((4, 5), (6,)), "min_new_tokens": 5},
    {"num_beams": 3, "repetition_penalty": 1.1},
)


def _varied_batch(num_rows: int, vocab_size: int) -> tuple[torch.Tensor, list[SamplingRow]]:
    generator = generator_from(7)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    logits[::3] = logits[::3].round()  # with many equal logits
    batch = []
    for i in range(num_rows):
        p = SamplingParams(
            9, **({"seed": i // 2, "stop_token_ids": (9,)} | _VARIED_PARAMS[i % len(_VARIED_PARAMS)])
        )
        batch.append(SamplingRow(f"r{i}", p, integers(generator, 0, vocab_size, 5 + i % 7), 4))
    return logits, batch


@pytest.mark.parametrize("vocab_size", [2999, 4096])
def test_results_are_bit_identical_in_any_batch(vocab_size: int) -> None:
    logits, batch = _varied_batch(40, vocab_size)
    alone = [_sample_alone(logits[i], row) for i, row in enumerate(batch)]
    generator = generator_from(3)
    for size in (2, 3, 7, 16, 33, 40):
        indices = torch.randperm(40, generator=generator)[:size].tolist()
        own, before = logits[indices], logits[indices]
        assert Sampler(vocab_size, CPU).sample(own, [batch[i] for i in indices]) == [
            alone[i] for i in indices
        ]
        assert torch.equal(own, before), "the caller's logits are not changed"


def test_few_rows_are_sampled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of all logits of hundreds of rows would take gigabytes."""
    logits, batch = _varied_batch(150, 300)
    alone = [_sample_alone(logits[i], row) for i, row in enumerate(batch)]
    sizes = []

    def counting_choose(logits: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(logits))
        return choose_tokens(logits, *arguments)

    monkeypatch.setattr("engines.sampling.sampler.choose_tokens", counting_choose)
    sampler = Sampler(300, CPU)
    assert sampler.sample(logits, batch) == alone
    assert sampler.sample(logits.flip(0), batch[::-1]) == alone[::-1]
    assert sizes == [128, 22, 128, 22]


_SAMPLE_IN_NEW_PROCESS = """
import json, torch
from engines.sampling.sampler import Sampler
from tests.engines.sampling.test_sampler import _varied_batch
torch.set_num_threads(2)
logits, batch = _varied_batch(27, 2999)
print(json.dumps(Sampler(2999, torch.device("cpu")).sample(logits, batch)))
"""


@pytest.mark.long
def test_results_are_bit_identical_in_another_process() -> None:
    """The other process runs two threads."""
    process = subprocess.run(
        [sys.executable, "-c", _SAMPLE_IN_NEW_PROCESS],
        cwd=REPO_ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    logits, batch = _varied_batch(27, 2999)
    expected = [_sample_alone(logits[i], row) for i, row in enumerate(batch)]
    assert json.loads(process.stdout) == json.loads(json.dumps(expected))
