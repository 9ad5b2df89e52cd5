"""Native sampling gives the tokens, thresholds and log-probabilities of the torch operations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from lmi_kernels.cpu.sampling import choose_tokens_native, logit_thresholds_native, row_logprobs_native
from lmi_kernels.cpu.team import Team
from lmi_kernels.sampling.penalties import penalize
from lmi_kernels.sampling.row_logprobs import row_logprobs_torch
from lmi_kernels.sampling.truncate_logits_cpu import NO_LAST_ID, logit_thresholds_cpu
from tests.kernels.references.choose_tokens import CHECKS as CHOICES
from tests.kernels.references.choose_tokens import choose_tokens_reference
from tests.kernels.references.truncate_logits import CHECKS as THRESHOLDS
from tests.kernels.references.truncate_logits import logit_thresholds_reference
from tests.support.seeds import fresh_generator

Tensors = tuple[torch.Tensor, ...]
Everywhere = Callable[[Callable[[Team], Tensors]], Tensors]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_EXTREMES = {
    "one token": torch.tensor([3.5]),
    "all equal": torch.full((5000,), -2.25),
    "two values": torch.tensor([0.5, 1.5]).repeat(2500),
    "all -inf but one": torch.full((5000,), -math.inf).index_fill(0, torch.tensor(4321), -7.0),
    "all -inf": torch.full((100,), -math.inf),
    "one infinite": torch.zeros(100).index_fill(0, torch.tensor(99), math.inf),
    "one NaN": torch.zeros(1000).index_fill(0, torch.tensor(998), math.nan),
    "zeros of both signs": torch.tensor([0.0, -0.0, -1e-45, 1e-45]).repeat(500),
    "far apart": torch.linspace(-3.4e38, 3.4e38, 3000),
    "large": 1e8 + torch.arange(2000.0) * 8,
}
_PARAMETERS = tuple(
    (temperature, top_k, top_p, min_p)
    for temperature, top_k, (top_p, min_p) in itertools.product(
        (0.0, 1e-30, 1e-3, 1.0, 1e3, 1e30),
        (0, 1, 7, 10_000),
        # Values for which rounding does not decide how many of the equal tokens are kept.
        ((1.0, 0.0), (1e-300, 0.0), (0.370037, 0.0), (1.0, 1.0), (0.900037, 0.1)),
    )
)


def _columns(*parameters: tuple[float, int, float, float]) -> Tensors:
    """Make a tensor for each of temperature, top_k, top_p and min_p."""
    temperature, top_k, top_p, min_p = (torch.tensor(numbers) for numbers in zip(*parameters, strict=True))
    return temperature.double(), top_k, top_p.double(), min_p.double()


def _draws(generator: torch.Generator, num_rows: int) -> Tensors:
    """Make random seeds and positions."""
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    return seeds, torch.randint(2**40, (num_rows,), generator=generator)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_thresholds_equal_those_of_a_full_sort(everywhere: Everywhere, dtype: torch.dtype) -> None:
    for inputs in THRESHOLDS[0].examples(fresh_generator(), dtype):
        logits = penalize(inputs.pop("padded")[:, : inputs.pop("vocab")], inputs.pop("penalties"))
        parameters = tuple(inputs.values())
        expected = logit_thresholds_reference(logits, **inputs)
        found = everywhere(
            lambda team, logits=logits, parameters=parameters: logit_thresholds_native(
                team, logits, *parameters
            )
        )
        torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-6)
        assert torch.equal(found[1], expected[1])
        finite = (found[0] > -math.inf).nonzero()[:, 0]
        assert torch.equal(found[0][finite], logit_thresholds_cpu(logits, *parameters)[0][finite])


@pytest.mark.parametrize("dtype", _DTYPES)
def test_tokens_equal_those_with_noise_for_all_tokens(everywhere: Everywhere, dtype: torch.dtype) -> None:
    for inputs in CHOICES[0].examples(fresh_generator(), dtype):
        logits = penalize(inputs.pop("padded")[:, : inputs.pop("vocab")], inputs.pop("penalties"))
        _check_choice(everywhere, logits, *inputs.values())


def _check_choice(everywhere: Everywhere, *parameters: torch.Tensor) -> None:
    found = everywhere(lambda team: choose_tokens_native(team, *parameters))
    expected = choose_tokens_reference(*parameters)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", _EXTREMES)
def test_extreme_rows_and_parameters(everywhere: Everywhere, name: str) -> None:
    """All rows have the same logits. Each has its own parameters."""
    logits = _EXTREMES[name].expand(len(_PARAMETERS), -1)
    columns = _columns(*_PARAMETERS)
    edges = everywhere(lambda team: logit_thresholds_native(team, logits, *columns))
    if logits[0].amax().isfinite():
        expected = logit_thresholds_cpu(logits, *columns)
        for i, parameters in enumerate(_PARAMETERS):
            assert edges[0][i] == expected[0][i], parameters
            assert edges[1][i] == expected[1][i], parameters
    else:
        assert (edges[0] == -math.inf).all()
    draws = _draws(fresh_generator(), len(logits))
    _check_choice(everywhere, logits, columns[0], *edges, *draws)


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 300.0])
def test_tokens_drawn_from_whole_vocabularies(everywhere: Everywhere, spread: float) -> None:
    generator = fresh_generator()
    temperature = torch.tensor([1e-30, 1e-3, 0.7, 1.0, 1.0, 50.0, 0.0])
    for vocab in (63, 5000, 30_001):
        logits = torch.randn(len(temperature), vocab, generator=generator).mul_(spread)
        thresholds = logits.sort(dim=-1).values[:, int(torch.randint(vocab, (1,), generator=generator))]
        thresholds[::2] = -math.inf
        last_ids = torch.randint(vocab, (len(temperature),), dtype=torch.int32, generator=generator)
        draws = _draws(generator, len(temperature))
        _check_choice(everywhere, logits, temperature, thresholds, last_ids, *draws)


def test_tokens_of_many_short_rows(everywhere: Everywhere) -> None:
    logits = torch.zeros(3000, 50)
    no_truncation = torch.full((3000,), -math.inf), torch.zeros(3000, dtype=torch.int32)
    draws = _draws(fresh_generator(), 3000)
    _check_choice(everywhere, logits, torch.ones(3000), *no_truncation, *draws)


@pytest.mark.parametrize("spread", [0.05, 3.0])
def test_truncation_of_a_whole_vocabulary(everywhere: Everywhere, spread: float) -> None:
    """In fp64, the kept tokens have a total probability of top_p, and less without the last of them."""
    logits = torch.randn(6, 49_152, generator=fresh_generator()).mul_(spread)
    parameters = ((0, 0.05), (0, 0.9), (0, 0.9999), (50, 0.9), (9000, 0.5), (40_000, 0.99))
    columns = _columns(*((0.8, top_k, top_p, 0.0) for top_k, top_p in parameters))
    thresholds, last_ids = everywhere(lambda team: logit_thresholds_native(team, logits, *columns))
    assert (last_ids == NO_LAST_ID).all()
    for row, threshold, (top_k, top_p) in zip(logits, thresholds.tolist(), parameters, strict=True):
        ranked = row.where(row >= row.topk(top_k).values[-1], -math.inf) if top_k else row
        shares = (ranked.double() / 0.8).softmax(-1)
        assert float(shares[ranked >= threshold].sum()) >= top_p - 1e-6
        assert float(shares[ranked > threshold].sum()) < top_p + 1e-6


def test_thresholds_are_the_same_alone_and_in_a_batch(everywhere: Everywhere) -> None:
    logits = torch.randn(9, 3001, generator=fresh_generator()).mul_(2.0)
    logits[:, ::7] = -math.inf
    columns = _columns(*[(0.9, 0, 0.97, 0.0)] * 9)
    together, _ = everywhere(lambda team: logit_thresholds_native(team, logits, *columns))
    for i in range(9):
        row, own = logits[i : i + 1], [column[:1] for column in columns]
        alone, _ = everywhere(lambda team, row=row, own=own: logit_thresholds_native(team, row, *own))
        assert alone == together[i]


@pytest.mark.parametrize("spread", [0.5, 3.0, 100.0])
def test_logprobs_match_torch(everywhere: Everywhere, spread: float) -> None:
    generator = fresh_generator()
    for vocab in (1, 50, 20_001):
        # On a grid, many logits are equal, also at the last reported rank. All others are clearly different.
        logits = torch.randn(8, vocab, generator=generator).mul_(spread * 1024).round_().div_(1024)
        logits[::2] = logits[::2].round_()
        logits[:, 1::5] = -math.inf
        rows, counts = [0, 1, 3, 4, 6, 7], [0, 5, 20, 3, min(vocab, 200), 1]
        tokens = logits[rows].argmax(-1)
        own, tops = row_logprobs_torch(logits, rows, tokens, counts)
        logprobs, *found = everywhere(_reporter(logits, rows, tokens, counts))
        assert logprobs.tolist() == pytest.approx(own, abs=3e-5)
        expected = [torch.tensor(top, dtype=torch.float64).view(-1, 2) for top in tops]
        for pairs, wanted in zip(found, expected, strict=True):
            assert torch.equal(pairs[:, 0], wanted[:, 0])
            torch.testing.assert_close(pairs[:, 1], wanted[:, 1], rtol=0.0, atol=3e-5)


def _reporter(
    logits: torch.Tensor, rows: list[int], tokens: torch.Tensor, counts: list[int]
) -> Callable[[Team], Tensors]:
    """A call of `row_logprobs_native`: log-probabilities, and for each row its pairs of token and log-probability."""

    def report(team: Team) -> Tensors:
        logprobs, tops = row_logprobs_native(team, logits, rows, tokens, counts)
        pairs = [torch.tensor(top, dtype=torch.float64).view(-1, 2) for top in tops]
        return torch.tensor(logprobs), *pairs

    return report


def test_columns_of_another_dtype_are_converted(everywhere: Everywhere) -> None:
    """The library receives addresses. With a narrower dtype it would read and write past the end."""
    logits, rows = torch.randn(5, 97), [0, 1, 2, 3, 4]
    tokens, counts = logits.argmin(-1), [1, 0, 1, 1, 0]
    expected = everywhere(_reporter(logits, rows, tokens, counts))
    found = everywhere(_reporter(logits, rows, tokens.to(torch.int32), [count > 0 for count in counts]))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_non_finite_rows_have_no_logprobs(everywhere: Everywhere) -> None:
    logits = torch.zeros(3, 300)
    logits[0, 7], logits[1, 299], logits[2] = math.nan, math.inf, -math.inf
    first = torch.zeros(3, dtype=torch.int64)
    logprobs, *tops = everywhere(_reporter(logits, [0, 1, 2], first, [2, 2, 2]))
    assert logprobs.isnan().all()
    assert [len(top) for top in tops] == [0, 0, 0]
