from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sampling.random_stream import uniform

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**20)


@given(SEEDS, POSITIONS)
def test_is_a_number_below_one_with_53_bits(seed: int, position: int) -> None:
    number = uniform(seed, position)
    assert 0.0 <= number < 1.0
    assert (number * 2**53).is_integer()
    assert uniform(seed, position) == number


def test_seed_0_is_splitmix64_as_published() -> None:
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [uniform(0, position) for position in range(3)] == [(x >> 11) / 2**53 for x in outputs]


def _chi_square(counts: Counter[int], bins: int, total: int) -> float:
    expected = total / bins
    return sum((counts[i] - expected) ** 2 / expected for i in range(bins))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("positions of one seed", [uniform(12345, position) for position in range(20_000)]),
        ("neighbouring seeds", [uniform(seed, 7) for seed in range(20_000)]),
        ("seeds and positions together", [uniform(i, i) for i in range(20_000)]),
        ("large seeds", [uniform(2**64 - 1 - seed, 0) for seed in range(20_000)]),
        ("seeds a golden step apart", [uniform((i * 0x9E3779B97F4A7C15) % 2**64, 3) for i in range(20_000)]),
    ],
)
def test_is_uniform(name: str, numbers: list[float]) -> None:
    # 64 bins: mean 63, deviation 11; the numbers are fixed, so this never fails by chance.
    assert _chi_square(Counter(int(number * 64) for number in numbers), 64, len(numbers)) < 63 + 5 * 11.3
    # And neighbours do not follow each other: pairs over 8 x 8 bins.
    pairs = Counter(int(a * 8) * 8 + int(b * 8) for a, b in zip(numbers[::2], numbers[1::2], strict=True))
    assert _chi_square(pairs, 64, len(numbers) // 2) < 63 + 5 * 11.3


def test_streams_do_not_meet() -> None:
    drawn = {uniform(seed, position) for seed in range(200) for position in range(200)}
    assert len(drawn) == 200 * 200
