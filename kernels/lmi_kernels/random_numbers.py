"""Random numbers as a function of seed, position and token: Philox4x32-10 (Salmon et al., SC 2011).

No state, so that a row's numbers depend on nothing but these three: not on the batch, nor on how the work is split.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import cdiv, jit, tl
from lmi_kernels.checks import Inputs, OpCheck, Results

SPAN = 1024
"""Philox gives four words at a time: token t has word (t % 4096) // 1024 of counter t // 4096 * 1024 + t % 1024, so
that what one program computes together belongs to four runs of neighbours, which it loads together."""

_MASK = 0xFFFFFFFF


@jit
def random_words(seed, position, counters):
    """Four blocks of 32 random bits, uint32. seed, position: int64; counters: a block of int32."""
    return tl.philox(seed, counters, position.to(tl.uint32), (position >> 32).to(tl.uint32), 0)


@jit
def gumbel(word, second, third):
    """-log(E), E a standard exponential variate, of a word and the low halves of two others of the same counter.

    What wins a draw is a small E, so that end has all the precision: E = -log(1 - v), where v is a word's 32 bits and
    32 more behind them, as a floating-point number. A token of probability 1e-15 is still drawn as often as that.
    """
    behind = (second << 16) | (third & 0xFFFF)
    v = word.to(tl.float32) * 2.3283064365386963e-10 + (behind.to(tl.float32) + 0.5) * 5.421010862427522e-20
    # Below 1, where rounding would lead to.
    v = tl.minimum(v, 0.99999994)
    # 1 - v has lost what a small v knew; the next term would be v^4 / 5, below fp32's rounding.
    series = v * (1.0 + v * (0.5 + v * (0.3333333333 + v * 0.25)))
    return -tl.log(tl.where(v < 0.03125, series, -tl.log(1.0 - v)))


def words_reference(
    seed: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor, c3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10. seed: int64, all 64 bits; counters: int64 in [0, 2**32), of one shape -> four words, as these."""
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        c0, c1, c2, c3 = (
            _high(0xCD9E8D57, c2) ^ c1 ^ k0,
            (0xCD9E8D57 * c2) & _MASK,
            _high(0xD2511F53, c0) ^ c3 ^ k1,
            (0xD2511F53 * c0) & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def _high(factor: int, words: torch.Tensor) -> torch.Tensor:
    """The upper 32 bits of 64-bit products, in int64 without overflow: half a word at a time."""
    return (factor * (words >> 16) + ((factor * (words & 0xFFFF)) >> 16)) >> 16


def gumbel_reference(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """fp64: the noise of tokens [0, num_tokens) of each row. seeds, positions: [num_rows], int64."""
    tokens = torch.arange(num_tokens)
    counters = (tokens // (4 * SPAN) * SPAN + tokens % SPAN).expand(len(seeds), -1)
    seeds, positions = seeds[:, None], positions[:, None]
    zeros = torch.zeros_like(counters)
    words = torch.stack(
        words_reference(
            seeds, counters, (positions & _MASK) + zeros, ((positions >> 32) & _MASK) + zeros, zeros
        )
    )
    first = (tokens % (4 * SPAN) // SPAN).expand(1, len(seeds), -1)
    word, second, third = (words.gather(0, (first + i) % 4)[0] for i in range(3))
    behind = ((second << 16) & _MASK) | (third & 0xFFFF)
    # The number that is drawn is an fp32 one, the same everywhere: scaling by powers of two rounds nothing.
    v = (word.float() * 2.0**-32 + (behind.float() + 0.5) * 2.0**-64).clamp(max=0.99999994).double()
    return -(-torch.log1p(-v)).log()


@jit
def _noise_kernel(seed_ptr, position_ptr, noise_ptr, num_tokens, SPAN: tl.constexpr):
    """Four spans of a row a program."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    lanes = tl.arange(0, SPAN)
    a, b, c, d = random_words(seed, position, group * SPAN + lanes)
    tokens = group * 4 * SPAN + lanes
    row_ptr = noise_ptr + row * num_tokens
    tl.store(row_ptr + tokens, gumbel(a, b, c), mask=tokens < num_tokens)
    tl.store(row_ptr + tokens + SPAN, gumbel(b, c, d), mask=tokens + SPAN < num_tokens)
    tl.store(row_ptr + tokens + 2 * SPAN, gumbel(c, d, a), mask=tokens + 2 * SPAN < num_tokens)
    tl.store(row_ptr + tokens + 3 * SPAN, gumbel(d, a, b), mask=tokens + 3 * SPAN < num_tokens)


def gumbel_noise_triton(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> Results:
    """As `gumbel_reference`, in fp32: [num_rows, num_tokens]. Only checks call it: serving never writes noise down."""
    noise = torch.empty(len(seeds), num_tokens, dtype=torch.float32, device=seeds.device)
    _noise_kernel[(len(seeds), cdiv(num_tokens, 4 * SPAN))](seeds, positions, noise, num_tokens, SPAN=SPAN)
    return (noise,)


def _gumbel_noise_reference(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> Results:
    return (gumbel_reference(seeds, positions, num_tokens),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, num_tokens in ((2, 30000), (3, 1)):
        seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
        positions = torch.randint(2**40, (rows,), generator=generator)
        yield {"seeds": seeds, "positions": positions, "num_tokens": num_tokens}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    rows = torch.empty(32, dtype=torch.int64, device="meta")
    yield {"seeds": rows, "positions": rows, "num_tokens": 128256}


CHECKS = (
    OpCheck(
        "gumbel_noise",
        gumbel_noise_triton,
        _gumbel_noise_reference,
        _examples,
        _production,
        dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), 2e-5),
    ),
)
