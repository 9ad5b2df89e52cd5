"""Gumbel noise as a stateless function of seed, position and token. It is independent of the batch, of the split of the
work, and of the device: `random_numbers_cpu.py` returns the same bits.

Random words are integers. Philox4x32-10 (Salmon et al., SC 2011) derives four keys from seed and position. Three rounds
of shifts and products derive a word from the keys and a token (with the constants of Wellons' `triple32`; with only two
rounds neighboring tokens are not independent). Noise is computed from words by single sums and products in fp32, with
the rounding of IEEE 754. Kernels that use it must be launched with `EXACT`.
"""

from __future__ import annotations

from lmi_kernels._triton import jit, tl

EXACT = {"enable_fp_fusion": False}
"""Launch options that prevent fusing products and sums, because fusing would round once instead of twice."""


@jit
def row_keys_of(seed, position):
    """Return the four keys of a row, int32. seed, position: int64."""
    a, b, c, d = tl.philox(seed, position.to(tl.uint32), (position >> 32).to(tl.uint32), 0, 0)
    return (
        a.to(tl.int32, bitcast=True),
        b.to(tl.int32, bitcast=True),
        c.to(tl.int32, bitcast=True),
        d.to(tl.int32, bitcast=True),
    )


@jit
def _log(y):
    """Return the logarithm of positive normal fp32 numbers, to a few units in the last place (Cephes' `logf`)."""
    bits = y.to(tl.int32, bitcast=True)
    # y = (1 + x) * 2**exponent, with 1 + x from sqrt(0.5) to sqrt(2).
    exponent = (bits - 0x3F3504F3) >> 23
    x = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    p = (x * 7.0376836292e-2 - 1.1514610310e-1) * x + 1.1676998740e-1
    p = (p * x - 1.2420140846e-1) * x + 1.4249322787e-1
    p = (p * x - 1.6668057665e-1) * x + 2.0000714765e-1
    p = (p * x - 2.4999993993e-1) * x + 3.3333331174e-1
    square = x * x
    whole = exponent.to(tl.float32)
    # log(2) is split in two parts, and the larger part has few bits.
    rest = p * x * square + whole * -2.12194440e-4 - square * 0.5
    return x + rest + whole * 0.693359375


@jit
def gumbel_of(word, behind):
    """Return -log(E) for a standard exponential variate E, from two words of 31 bits, int32.

    The smallest E wins a draw, so small values need the most precision: E = -log(1 - v), where v is a floating-point
    number from the 62 bits of the words. A token of probability 1e-15 is still drawn that often.
    """
    v = word.to(tl.float32) * 4.656612873077393e-10 + (behind.to(tl.float32) + 0.5) * 2.168404344971009e-19
    # Rounding could give 1.
    v = tl.minimum(v, 0.99999994)
    # 1 - v loses the digits of a small v, so use the series. Its next term, v^4 / 5, is below fp32's rounding.
    series = v * (1.0 + v * (0.5 + v * (0.3333333333 + v * 0.25)))
    return -_log(tl.where(v < 0.03125, series, -_log(1.0 - v)))


@jit
def gumbel(tokens, first, second, third, behind):
    """Return the noise of a block of token ids, int32, from their row's keys. Right shifts are arithmetic."""
    h = tokens ^ first
    h = ((h ^ (h >> 17)) * -0x12A52B45) ^ second
    h = ((h ^ (h >> 11)) * -0x53B3E4AF) ^ third
    h = (h ^ (h >> 15)) * 0x31848BAB
    more = h ^ behind
    more = (more ^ (more >> 16)) * -0x7A143595
    return gumbel_of((h ^ (h >> 14)) & 0x7FFFFFFF, (more ^ (more >> 13)) & 0x7FFFFFFF)
