"""The references of the sampling kernels and the CPU implementations, against the sampler's steps, known answers and
expected distributions."""

from __future__ import annotations

import pytest
import torch

from engines.core import SamplingParams
from engines.sampling.adjustments import penalties
from engines.sampling.batch import SamplingRow
from lmi_kernels import Penalties
from lmi_kernels.sampling.choose_tokens_cpu import CoarseSearch, choose_tokens_cpu
from lmi_kernels.sampling.penalties import penalize
from lmi_kernels.sampling.random_numbers_cpu import Keys, noise, philox, row_keys
from lmi_kernels.sampling.truncate_logits_cpu import logit_thresholds_cpu
from tests.kernels.references.choose_tokens import choose_tokens_reference
from tests.kernels.references.count_tokens import count_tokens_reference
from tests.kernels.references.truncate_logits import CHECKS as THRESHOLDS
from tests.kernels.references.truncate_logits import logit_thresholds_reference
from tests.support.sampling_oracle import apply
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
def test_philox_gives_the_known_answers(seed: int, counter: list[int], answer: list[int]) -> None:
    signed = seed - ((seed >> 63) << 64)
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox(torch.tensor([signed]), c0, c1, c2, c3)
    assert [word.item() for word in words] == answer


def _noise(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    seeds, positions, tokens = torch.broadcast_tensors(seeds, positions, tokens)
    return noise(tokens.to(torch.int32), row_keys(seeds, positions))


COUNT = 40_000
RANGE, ONES = torch.arange(COUNT), torch.ones(COUNT, dtype=torch.int64)


@pytest.mark.parametrize(
    ("seeds", "positions", "tokens"),
    [
        (7 * ONES, 3 * ONES, RANGE),
        (7 * ONES, RANGE, 5 * ONES),
        (RANGE, 3 * ONES, 5 * ONES),
        (-RANGE, 3 * ONES, 128_000 * ONES),
        (RANGE, RANGE, RANGE),
        (7 * ONES, RANGE // 2, RANGE % 2),
        (RANGE // 2, ONES, RANGE % 2 * 32_768),
    ],
    ids=["tokens", "positions", "seeds", "large seeds", "all", "two neighbors", "two far apart"],
)
def test_noise_is_gumbel_and_neighbors_are_independent(
    seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
) -> None:
    uniform = (-(-_noise(seeds, positions, tokens).double()).exp()).exp()
    pairs = (uniform[::2] * 16).long() * 16 + (uniform[1::2] * 16).long()
    for cells, count in ((uniform * 256).long(), 256), (pairs, 256):
        expected = len(cells) / count
        statistic = (torch.bincount(cells, minlength=count) - expected).square().sum() / expected
        # Mean 255, standard deviation 22.6. The inputs are fixed, so the test never fails by chance.
        assert float(statistic) < 255 + 4 * 22.6


def test_noise_is_the_same_everywhere() -> None:
    """No processor, library or release may change these bits. Otherwise a seed would give other tokens."""
    seeds, positions = torch.tensor([0, 1, -1]), torch.tensor([0, 2**33 + 5, 77])
    bits = _noise(seeds[:, None], positions[:, None], torch.tensor([0, 1, 49_151, 151_935])).view(torch.int32)
    assert bits.tolist() == [
        [1055197947, 1069362346, 1049713194, 1062458464],
        [-1077906381, -1082305961, 1049382447, 1075404296],
        [-1157257961, 1073862145, -1090080833, -1080430160],
    ]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_in_proportion_to_their_probabilities(temperature: float) -> None:
    generator = fresh_generator()
    rows, vocab = 20_000, 16
    row = torch.randn(vocab, generator=generator).mul_(1.5)
    row[3] = -torch.inf
    threshold = row.sort().values[3]
    tokens, finite = choose_tokens_reference(
        row.expand(rows, -1),
        torch.full((rows,), temperature),
        threshold.expand(rows),
        torch.full((rows,), vocab, dtype=torch.int32),
        torch.full((rows,), integers(generator, 0, 2**31, 1)[0]),
        torch.arange(rows),
    )
    assert bool(finite.all())
    kept = row >= threshold
    expected = (row / temperature).where(kept, -torch.inf).double().softmax(-1)[kept] * rows
    counts = torch.bincount(tokens, minlength=vocab)
    assert int(counts[~kept].sum()) == 0
    chi_square = ((counts[kept] - expected).square() / expected).sum()
    p = torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2.0), (chi_square / 2.0).float())
    assert float(p) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_partial_sorting_finds_the_thresholds_of_full_sorting(dtype: torch.dtype) -> None:
    generator = fresh_generator()
    for inputs in (each for _ in range(5) for each in THRESHOLDS[0].examples(generator, dtype)):
        logits = penalize(inputs.pop("padded")[:, : inputs.pop("vocab")], inputs.pop("penalties"))
        finite = logits.amax(dim=-1).isfinite()
        found, expected = (
            call(logits, **inputs) for call in (logit_thresholds_cpu, logit_thresholds_reference)
        )
        torch.testing.assert_close(found[0][finite], expected[0][finite], rtol=1e-6, atol=1e-6)
        assert torch.equal(found[1][finite], expected[1][finite])


def test_a_nucleus_of_nearly_everything_keeps_top_k() -> None:
    """Rounded, the probabilities of the `top_k` tokens may add up to less than `top_p`."""
    logits = torch.randn(400, 97, generator=fresh_generator())
    ones = torch.ones(400)
    top_p = torch.full((400,), 1 - 1e-8, dtype=torch.float64)
    thresholds, _ = logit_thresholds_cpu(logits, ones, torch.full((400,), 3), top_p, 0 * ones)
    assert torch.equal(thresholds, logits.topk(3).values[:, -1])


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 300.0])
@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 0.7, 1.0, 50.0])
def test_the_first_look_never_excludes_the_winner(spread: float, temperature: float) -> None:
    """The tokens are those that exact noise for the whole vocabulary selects."""
    generator = fresh_generator()
    rows = 12
    for vocab in (1, 63, 64, 5000, 9001):
        logits = torch.randn(rows, vocab, generator=generator).mul_(spread)
        logits[rows // 2 :] = logits[rows // 2 :].round()
        edges = logits.sort(dim=-1).values[:, torch.randint(vocab, (rows,), generator=generator)].diagonal()
        edges[::2] = -torch.inf
        inputs = (
            logits,
            torch.full((rows,), temperature).where(torch.arange(rows) % 5 > 0, 0.0),
            edges,
            torch.randint(vocab, (rows,), dtype=torch.int32, generator=generator),
            torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
            torch.randint(2**40, (rows,), generator=generator),
        )
        for found, expected in zip(choose_tokens_cpu(*inputs), choose_tokens_reference(*inputs), strict=True):
            assert torch.equal(found, expected)


def test_the_first_look_excludes_nothing_if_a_word_is_zero() -> None:
    """With a first word of 0, the noise depends on the second word, which the first look does not compute."""
    x = torch.zeros(640)
    x[0] = -20.0
    zero = torch.zeros((), dtype=torch.int32)
    assert bool(CoarseSearch(640).can_win(x, 1.0, Keys(zero, zero, zero, zero)).all())
    ordinary = row_keys(torch.tensor(1), torch.tensor(2))
    assert 0 < int(CoarseSearch(640).can_win(x, 1.0, ordinary).sum()) < 8


def test_penalties_equal_those_of_the_sampling_steps() -> None:
    generator = fresh_generator()
    vocab, num_rows = 50, 3
    logits = torch.randn(num_rows, vocab, generator=generator).mul_(4.0)
    values = torch.rand(3, num_rows, generator=generator).add_(0.5)
    values[2] *= -1
    rows, counts = [], torch.zeros(num_rows, vocab, dtype=torch.int16)
    for i in range(num_rows):
        prompt, output = integers(generator, 0, vocab, 10), integers(generator, 0, vocab, 30)
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        params = SamplingParams(1, **dict(zip(names, values[:, i].tolist(), strict=True)))
        rows.append(SamplingRow(str(i), params, (*prompt, *output), len(prompt)))
        counts[i, prompt] = 1
        for token in output:
            (counts,) = count_tokens_reference(
                counts, torch.tensor([i]), torch.tensor([token]), torch.ones(1)
            )
    expected = apply([penalties], logits, rows)
    ones = torch.ones(num_rows, dtype=torch.int64)
    found = penalize(logits, Penalties(counts, torch.arange(num_rows), ones, values))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
