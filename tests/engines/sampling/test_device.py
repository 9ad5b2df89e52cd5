"""`DeviceSampler`: a table of what is asked, and a batch of rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engines.core import SamplingParams
from engines.sampling.adjustments import penalties
from engines.sampling.batch import SamplingRow
from engines.sampling.device import DeviceSampler, device_samples
from tests.support.sampling_oracle import apply
from tests.support.seeds import fresh_generator, integers

VOCAB = 60
GREEDY = SamplingParams(max_new_tokens=1)
DRAWN = replace(GREEDY, temperature=1.0)
CPU = torch.device("cpu")


def sample(
    sampler: DeviceSampler, logits: torch.Tensor, rows: list[int], positions: list[int]
) -> tuple[list[int], list[bool]]:
    tokens, finite, _ = sampler.sample(logits, torch.tensor(rows), torch.tensor(positions))
    return tokens.tolist(), finite.tolist()


def admit(sampler: DeviceSampler, table_rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
    rows = [SamplingRow(f"sequence {i}", each, [0], 1) for i, each in enumerate(params)]
    sampler.admit(table_rows, rows)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 2**64 - 1},
        {"typical_p": 0.5},
        {"stop_token_ids": (1,), "max_new_tokens": 9},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logprobs": True},
    ],
    ids=str,
)
def test_what_the_device_does(asked: dict[str, Any]) -> None:
    assert device_samples(replace(GREEDY, **asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"typical_p": 0.5, "temperature": 1.0},
        {"logit_bias": ((1, 1.0),)},
        {"bad_words": ((1,),)},
        {"min_new_tokens": 1},
        {"top_logprobs": 1},
        {"prompt_logprobs": 0},
        {"num_beams": 2},
    ],
    ids=str,
)
def test_what_it_leaves_to_the_sampler(asked: dict[str, Any]) -> None:
    assert not device_samples(replace(GREEDY, **asked))


def test_each_row_gets_what_its_own_request_asks_for() -> None:
    sampler = DeviceSampler(VOCAB, 8, CPU)
    logits = torch.randn(60, VOCAB, generator=fresh_generator())
    largest = logits.argmax(-1).tolist()
    asked = [GREEDY, replace(DRAWN, top_k=1), replace(DRAWN, top_p=1e-9), replace(DRAWN, min_p=1.0), DRAWN]
    admit(sampler, [5, 0, 7, 2, 3], asked)
    positions = list(range(60))
    for row in (5, 0, 7, 2):
        assert sample(sampler, logits, [row] * 60, positions)[0] == largest
    drawn, _ = sample(sampler, logits, [3] * 60, positions)
    assert sum(a != b for a, b in zip(drawn, largest, strict=True)) > 25
    admit(sampler, [3], [replace(DRAWN, top_k=2)])
    of_two, _ = sample(sampler, logits, [3] * 60, positions)
    best = logits.topk(2).indices.tolist()
    assert all(token in pair for token, pair in zip(of_two, best, strict=True))
    assert {pair.index(token) for token, pair in zip(of_two, best, strict=True)} == {0, 1}


def test_draws_go_by_seed_and_position_and_nothing_else() -> None:
    logits = torch.zeros(1, VOCAB)
    sampler = DeviceSampler(VOCAB, 4, CPU)
    seeds = (0, 1, 2**63 + 5, 2**64 - 1)
    admit(sampler, range(4), [replace(DRAWN, seed=seed) for seed in seeds])
    rows = [row for row in range(4) for _ in range(20)]
    positions = list(range(20)) * 4
    together, _ = sample(sampler, logits.expand(80, -1), rows, positions)
    alone = [sample(sampler, logits, [row], [at])[0][0] for row, at in zip(rows, positions, strict=True)]
    assert together == alone
    by_seed = [together[20 * row : 20 * row + 20] for row in range(4)]
    assert len({tuple(tokens) for tokens in by_seed}) == 4
    assert all(len(set(tokens)) > 5 for tokens in by_seed)
    elsewhere = DeviceSampler(VOCAB, 9, CPU)
    admit(elsewhere, [8], [replace(DRAWN, seed=seeds[2])])
    assert sample(elsewhere, logits.expand(20, -1), [8] * 20, positions[:20])[0] == by_seed[2]


def test_of_equal_logits_a_tiny_nucleus_is_the_greedy_choice() -> None:
    logits = torch.zeros(50, VOCAB)
    logits[:, 7] = logits[:, 9] = logits[:, 30] = 2.0
    sampler = DeviceSampler(VOCAB, 1, CPU)
    admit(sampler, [0], [replace(DRAWN, top_p=1e-6)])
    assert sample(sampler, logits, [0] * 50, list(range(50)))[0] == [7] * 50


def test_padding_is_greedy_and_rows_that_are_not_finite_are_told() -> None:
    logits = torch.randn(5, VOCAB, generator=fresh_generator())
    logits[1, 3], logits[2, 4], logits[3] = torch.nan, torch.inf, -torch.inf
    sampler = DeviceSampler(VOCAB, 2, CPU)
    admit(sampler, [0, 1], [replace(DRAWN, top_k=5, top_p=0.9), replace(DRAWN, top_p=0.9)])
    tokens, finite = sample(sampler, logits, [2, 0, 1, 0, 2], [0] * 5)
    assert finite == [True, False, False, False, True]
    assert [tokens[0], tokens[4]] == [logits[0].argmax(), logits[4].argmax()]
    assert all(0 <= token < VOCAB for token in tokens)


PENALIZED = (
    replace(GREEDY, repetition_penalty=1.3),
    replace(GREEDY, presence_penalty=0.6, frequency_penalty=0.3),
    replace(GREEDY, repetition_penalty=0.7, presence_penalty=-0.5, frequency_penalty=0.9, logprobs=True),
    replace(DRAWN, top_k=1, repetition_penalty=1.2, frequency_penalty=1.5),
)


class Sequences:
    """Some that are sampled together, in rows of one sampler; the oracle is the host's own steps."""

    def __init__(self) -> None:
        self._generator = fresh_generator()
        self.sampler = DeviceSampler(VOCAB, 6, CPU)
        self.rows = [self.make(f"s{i}", each) for i, each in enumerate(PENALIZED)]

    def make(self, name: str, params: SamplingParams) -> SamplingRow:
        # One id is none of the vocabulary, as those of an image may be.
        prompt = [VOCAB + 3, *integers(self._generator, 0, VOCAB, 12)]
        return SamplingRow(name, params, prompt, len(prompt))

    def tell(self, places: Sequence[int], num_unknown: int) -> None:
        told = [
            row._replace(token_ids=[*row.token_ids[: len(row.token_ids) - num_unknown], *[-1] * num_unknown])
            for row in self.rows
        ]
        self.sampler.admit(places, told)

    def sample(self, places: Sequence[int], num_unknown: int = 0) -> list[int]:
        """The tokens, which are right, of all sequences, in these rows of the table; a row of padding goes along.

        num_unknown: so many of the last tokens the sampler is not told.
        """
        self.tell(places, num_unknown)
        # Close to each other, so that penalties decide.
        logits = torch.randn(len(self.rows) + 1, VOCAB, generator=self._generator)
        at = torch.tensor([*places, 6])
        tokens, finite, logprobs = self.sampler.sample(logits, at, torch.arange(len(at)))
        assert bool(finite.all())
        expected = apply([penalties], logits[:-1], self.rows).argmax(-1).tolist()
        assert tokens.tolist() == [*expected, int(logits[-1].argmax())]
        own = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        asked = torch.tensor([*(row.params.logprobs for row in self.rows), False])
        torch.testing.assert_close(logprobs, own.where(asked, 0.0), rtol=1e-5, atol=1e-5)
        return expected

    def go_on(self, places: Sequence[int], num_unknown: int = 0) -> None:
        for row, token in zip(self.rows, self.sample(places, num_unknown), strict=True):
            row.token_ids.append(token)  # type: ignore[attr-defined]


def test_penalties_and_log_probabilities_of_tokens_that_nobody_has_seen() -> None:
    sequences = Sequences()
    for step in range(25):
        sequences.go_on([4, 0, 5, 2], num_unknown=min(step, 2))


def test_a_step_can_be_computed_again() -> None:
    sequences = Sequences()
    for _ in range(4):
        for _ in range(3):
            sequences.sample([4, 0, 5, 2])
        sequences.go_on([4, 0, 5, 2])
        sequences.go_on([4, 0, 5, 2], num_unknown=1)


def test_rows_change_hands() -> None:
    sequences = Sequences()
    # Some swap rows, some come back to a row that was another's, one waits while others go on.
    for places in ([0, 1, 2, 3], [1, 0, 2, 5], [1, 0, 3, 5], [0, 1, 2, 3]):
        sequences.go_on(places)
        sequences.go_on(places, num_unknown=1)
    # Another request with the same parameters, by chance just one token longer.
    first = sequences.rows[0]
    other = sequences.make("other", first.params)
    sequences.rows[0] = other._replace(token_ids=[*other.token_ids, *[7] * (len(first.token_ids) - 13)])
    assert len(sequences.rows[0].token_ids) == len(first.token_ids)
    sequences.go_on([0, 1, 2, 3])
    sequences.go_on([0, 1, 2, 3], num_unknown=1)
    # What is asked for no more, in a row where it was.
    sequences.rows[0] = sequences.make("plain", GREEDY)
    sequences.go_on([0, 1, 2, 3])


def test_a_choice_that_is_no_sequences() -> None:
    sequences = Sequences()
    sequences.go_on([0, 1, 2, 3])
    for _ in range(3):
        logits = torch.zeros(2, VOCAB)
        logits[:, 5] = 1000.0
        sequences.sampler.sample(logits, torch.tensor([3, 1]), torch.arange(2))
        sequences.sampler.forget([3, 1])
    sequences.rows = [sequences.rows[i] for i in (1, 3)]
    for _ in range(8):
        sequences.go_on([1, 3])


def test_of_the_host_and_with_log_probabilities() -> None:
    sampler = DeviceSampler(VOCAB, 4, CPU)
    both = replace(GREEDY, logprobs=True, top_logprobs=2)
    admit(sampler, [3, 0, 1, 2], [GREEDY, both, replace(GREEDY, logprobs=True), replace(GREEDY, num_beams=2)])
    assert sampler.host_rows([3, 0, 1, 2]) == [1, 3]
    assert sampler.with_logprobs([3, 0, 1, 2]) == [2]
    admit(sampler, [0, 1], [replace(GREEDY, logprobs=True), GREEDY])
    assert sampler.host_rows([0, 1, 2]) == [2]
    assert sampler.with_logprobs([0, 1, 2]) == [0]
