"""The references of the sampling kernels, which serve on the CPU: against the sampler's own steps, known answers and
the distribution that is asked for."""

from __future__ import annotations

import math

import pytest
import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.frequency_penalty import frequency_penalty
from engines.sampling.min_p import min_p
from engines.sampling.presence_penalty import presence_penalty
from engines.sampling.repetition_penalty import repetition_penalty
from engines.sampling.temperature import temperature
from engines.sampling.top_k import top_k
from engines.sampling.top_p import top_p
from lmi_kernels.choose_tokens import choose_tokens_reference
from lmi_kernels.count_tokens import count_tokens_reference
from lmi_kernels.penalties import penalize_reference
from lmi_kernels.random_numbers import words_reference
from lmi_kernels.truncate_logits_checks import reference as thresholds_reference
from tests.support.sampling_oracle import CLOSE, apply
from tests.support.seeds import fresh_generator, integers


@pytest.mark.parametrize(
    ("seed", "counter", "answer"),
    [
        (0, [0] * 4, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, [0xFFFFFFFF] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            0x299F31D0A4093822,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_words_are_the_known_answers_of_philox(seed: int, counter: list[int], answer: list[int]) -> None:
    signed = seed - ((seed >> 63) << 64)
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = words_reference(torch.tensor([signed]), c0, c1, c2, c3)
    assert [word.item() for word in words] == answer


@pytest.mark.parametrize("heat", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_in_proportion_to_their_probabilities(heat: float) -> None:
    generator = fresh_generator()
    rows, vocab = 20_000, 16
    row = torch.randn(vocab, generator=generator).mul_(1.5)
    row[3] = -torch.inf
    threshold = row.sort().values[3]
    chosen, finite = choose_tokens_reference(
        row.expand(rows, -1),
        torch.full((rows,), heat),
        threshold.expand(rows),
        torch.full((rows,), vocab, dtype=torch.int32),
        torch.full((rows,), integers(generator, 0, 2**31, 1)[0]),
        torch.arange(rows),
        torch.full((rows, vocab), torch.nan),
        torch.zeros(rows),
    )
    assert bool(finite.all())
    kept = row >= threshold
    expected = (row / heat).where(kept, -torch.inf).double().softmax(-1)[kept] * rows
    counts = torch.bincount(chosen, minlength=vocab)
    assert int(counts[~kept].sum()) == 0
    chi_square = ((counts[kept] - expected).square() / expected).sum()
    p = torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2.0), (chi_square / 2.0).float())
    assert float(p) > 1e-6


@pytest.mark.parametrize("grid", [0.0, 0.25], ids=["distinct logits", "many equal logits"])
def test_what_thresholds_keep_is_what_the_steps_keep(grid: float) -> None:
    generator = fresh_generator()
    compared = 0
    for _ in range(120):
        vocab = integers(generator, 2, 300, 1)[0]
        logits = torch.randn(1, vocab, generator=generator).mul_(3.0)
        if grid:
            logits = logits.div_(grid).round_().mul_(grid)
        logits[0, 1::7] = -torch.inf
        heat, mass, share = (torch.rand(3, generator=generator) + 1e-3).clamp(max=0.999).tolist()
        kinds = integers(generator, 0, 2, 3)
        params = SamplingParams(
            max_new_tokens=1,
            temperature=0.3 + heat,
            top_k=integers(generator, 1, vocab + 2, 1)[0] if kinds[0] else 0,
            top_p=mass if kinds[1] else 1.0,
            min_p=share**3 if kinds[2] else 0.0,
        )
        row = SamplingRow("", params, (0,), 1)
        before_top_p = apply((temperature, top_k), logits, [row])
        cumulated = before_top_p.double().softmax(-1).sort(descending=True).values.cumsum(-1)
        if bool(((cumulated - params.top_p).abs() < CLOSE).any()) and params.top_p < 1.0:
            continue
        expected = apply((temperature, top_k, top_p, min_p), logits, [row]) > -math.inf
        thresholds, last_ids = thresholds_reference(
            logits,
            torch.tensor([params.temperature], dtype=torch.float64),
            torch.tensor([params.top_k]),
            torch.tensor([params.top_p], dtype=torch.float64),
            torch.tensor([params.min_p], dtype=torch.float64),
            torch.full_like(logits, torch.nan),
            torch.zeros(1),
        )
        kept = (logits > thresholds) | ((logits == thresholds) & (torch.arange(vocab) <= last_ids))
        assert torch.equal(kept & (logits > -math.inf), expected), params
        compared += 1
    assert compared > 60


def test_penalties_are_those_of_the_steps() -> None:
    generator = fresh_generator()
    vocab, num_rows = 50, 3
    logits = torch.randn(num_rows, vocab, generator=generator).mul_(4.0)
    rows, counts = [], torch.zeros(num_rows, vocab, dtype=torch.int16)
    for i in range(num_rows):
        prompt, output = integers(generator, 0, vocab, 10), integers(generator, 0, vocab, 30)
        numbers = torch.rand(3, generator=generator).add_(0.5).tolist()
        params = SamplingParams(
            max_new_tokens=1,
            repetition_penalty=numbers[0],
            presence_penalty=numbers[1],
            frequency_penalty=-numbers[2],
        )
        rows.append(SamplingRow(str(i), params, (*prompt, *output), len(prompt)))
        counts[i, prompt] = 1
        for token in output:
            (counts,) = count_tokens_reference(
                counts, torch.tensor([i]), torch.tensor([token]), torch.ones(1)
            )
    expected = apply((repetition_penalty, presence_penalty, frequency_penalty), logits, rows)
    (found,) = penalize_reference(
        logits,
        torch.arange(num_rows),
        counts,
        torch.ones(num_rows),
        torch.tensor([row.params.repetition_penalty for row in rows]),
        torch.tensor([row.params.presence_penalty for row in rows]),
        torch.tensor([row.params.frequency_penalty for row in rows]),
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
