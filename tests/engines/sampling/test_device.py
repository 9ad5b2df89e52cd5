"""`DeviceSampler`: a table of sampling parameters on the device, and batches of its rows."""

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
    ("changes", "expected"),
    [
        ({"typical_p": 0.5}, True),
        ({"stop_token_ids": (1,), "max_new_tokens": 9}, True),
        ({"logprobs": True}, True),
        ({"typical_p": 0.5, "temperature": 1.0}, False),
        ({"top_logprobs": 1}, False),
        ({"prompt_logprobs": 0}, False),
        ({"num_beams": 2}, False),
    ],
    ids=str,
)
def test_parameters_that_the_device_samples(changes: dict[str, Any], expected: bool) -> None:
    """test_same_tokens.py has the others."""
    assert device_samples(replace(GREEDY, **changes)) is expected


def test_each_row_uses_its_own_parameters() -> None:
    sampler = DeviceSampler(VOCAB, 8, CPU)
    logits = torch.randn(60, VOCAB, generator=fresh_generator())
    largest = logits.argmax(-1).tolist()
    params = [GREEDY, replace(DRAWN, top_k=1), replace(DRAWN, top_p=1e-9), replace(DRAWN, min_p=1.0), DRAWN]
    admit(sampler, [5, 0, 7, 2, 3], params)
    positions = list(range(60))
    for row in (5, 0, 7, 2):
        assert sample(sampler, logits, [row] * 60, positions)[0] == largest
    drawn, _ = sample(sampler, logits, [3] * 60, positions)
    assert sum(a != b for a, b in zip(drawn, largest, strict=True)) > 25
    admit(sampler, [3], [replace(DRAWN, top_k=2)])
    top_two, _ = sample(sampler, logits, [3] * 60, positions)
    best = logits.topk(2).indices.tolist()
    assert all(token in pair for token, pair in zip(top_two, best, strict=True))
    assert {pair.index(token) for token, pair in zip(top_two, best, strict=True)} == {0, 1}


def test_draws_depend_only_on_seed_and_position() -> None:
    logits = torch.zeros(1, VOCAB)
    sampler = DeviceSampler(VOCAB, 4, CPU)
    seeds = (0, 1, 2**63 + 5, 2**64 - 1)
    admit(sampler, range(4), [replace(DRAWN, seed=seed) for seed in seeds])
    rows = [row for row in range(4) for _ in range(20)]
    positions = list(range(20)) * 4
    together, _ = sample(sampler, logits.expand(80, -1), rows, positions)
    alone = [
        sample(sampler, logits, [row], [position])[0][0]
        for row, position in zip(rows, positions, strict=True)
    ]
    assert together == alone
    by_seed = [together[20 * row : 20 * row + 20] for row in range(4)]
    assert len({tuple(tokens) for tokens in by_seed}) == 4
    assert all(len(set(tokens)) > 5 for tokens in by_seed)
    other_sampler = DeviceSampler(VOCAB, 9, CPU)
    admit(other_sampler, [8], [replace(DRAWN, seed=seeds[2])])
    assert sample(other_sampler, logits.expand(20, -1), [8] * 20, positions[:20])[0] == by_seed[2]


def test_padding_is_greedy_and_non_finite_rows_are_reported() -> None:
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
    """Sequences in the table of one sampler. The host's sampling steps are the oracle."""

    def __init__(self) -> None:
        self._generator = fresh_generator()
        self.sampler = DeviceSampler(VOCAB, 6, CPU)
        self.rows = [self.make(f"s{i}", each) for i, each in enumerate(PENALIZED)]

    def make(self, name: str, params: SamplingParams) -> SamplingRow:
        # One id is outside the vocabulary, as image tokens may be.
        prompt = [VOCAB + 3, *integers(self._generator, 0, VOCAB, 12)]
        return SamplingRow(name, params, prompt, len(prompt))

    def admit(self, table_rows: Sequence[int], num_unknown: int) -> None:
        rows = [
            row._replace(token_ids=[*row.token_ids[: len(row.token_ids) - num_unknown], *[-1] * num_unknown])
            for row in self.rows
        ]
        self.sampler.admit(table_rows, rows)

    def sample(self, table_rows: Sequence[int], num_unknown: int = 0) -> list[int]:
        """Sample a token for each sequence and one padding row, check them against the oracle and return them.

        num_unknown: number of newest tokens that `admit` passes as -1, as for steps still in flight.
        """
        self.admit(table_rows, num_unknown)
        # The logits are close to each other, so penalties decide.
        logits = torch.randn(len(self.rows) + 1, VOCAB, generator=self._generator)
        rows = torch.tensor([*table_rows, 6])
        tokens, finite, logprobs = self.sampler.sample(logits, rows, torch.arange(len(rows)))
        assert bool(finite.all())
        expected = apply([penalties], logits[:-1], self.rows).argmax(-1).tolist()
        assert tokens.tolist() == [*expected, int(logits[-1].argmax())]
        own = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        with_logprobs = torch.tensor([*(row.params.logprobs for row in self.rows), False])
        torch.testing.assert_close(logprobs, own.where(with_logprobs, 0.0), rtol=1e-5, atol=1e-5)
        return expected

    def sample_and_append(self, table_rows: Sequence[int], num_unknown: int = 0) -> None:
        for row, token in zip(self.rows, self.sample(table_rows, num_unknown), strict=True):
            row.token_ids.append(token)  # type: ignore[attr-defined]


def test_penalties_and_logprobs_while_tokens_are_in_flight() -> None:
    sequences = Sequences()
    for step in range(25):
        sequences.sample_and_append([4, 0, 5, 2], num_unknown=min(step, 2))


def test_a_step_can_be_recomputed() -> None:
    sequences = Sequences()
    for _ in range(4):
        for _ in range(3):
            sequences.sample([4, 0, 5, 2])
        sequences.sample_and_append([4, 0, 5, 2])
        sequences.sample_and_append([4, 0, 5, 2], num_unknown=1)


def test_table_rows_are_reused() -> None:
    sequences = Sequences()
    # Sequences swap rows, move to free rows and return to rows that others have used.
    for table_rows in ([0, 1, 2, 3], [1, 0, 2, 5], [1, 0, 3, 5], [0, 1, 2, 3]):
        sequences.sample_and_append(table_rows)
        sequences.sample_and_append(table_rows, num_unknown=1)
    # Replace the first sequence by another one with the same parameters and the same length.
    first = sequences.rows[0]
    other = sequences.make("other", first.params)
    sequences.rows[0] = other._replace(token_ids=[*other.token_ids, *[7] * (len(first.token_ids) - 13)])
    assert len(sequences.rows[0].token_ids) == len(first.token_ids)
    sequences.sample_and_append([0, 1, 2, 3])
    sequences.sample_and_append([0, 1, 2, 3], num_unknown=1)
    # A sequence without penalties, in a row that had penalties.
    sequences.rows[0] = sequences.make("plain", GREEDY)
    sequences.sample_and_append([0, 1, 2, 3])


def test_forget_discards_samples_that_gave_no_token() -> None:
    sequences = Sequences()
    sequences.sample_and_append([0, 1, 2, 3])
    for _ in range(3):
        logits = torch.zeros(2, VOCAB)
        logits[:, 5] = 1000.0
        sequences.sampler.sample(logits, torch.tensor([3, 1]), torch.arange(2))
        sequences.sampler.forget([3, 1])
    sequences.rows = [sequences.rows[i] for i in (1, 3)]
    for _ in range(8):
        sequences.sample_and_append([1, 3])


def test_host_rows_and_rows_with_logprobs() -> None:
    sampler = DeviceSampler(VOCAB, 4, CPU)
    both = replace(GREEDY, logprobs=True, top_logprobs=2)
    admit(sampler, [3, 0, 1, 2], [GREEDY, both, replace(GREEDY, logprobs=True), replace(GREEDY, num_beams=2)])
    assert sampler.host_rows([3, 0, 1, 2]) == [1, 3]
    assert sampler.with_logprobs([3, 0, 1, 2]) == [2]
    admit(sampler, [0, 1], [replace(GREEDY, logprobs=True), GREEDY])
    assert sampler.host_rows([0, 1, 2]) == [2]
    assert sampler.with_logprobs([0, 1, 2]) == [0]
