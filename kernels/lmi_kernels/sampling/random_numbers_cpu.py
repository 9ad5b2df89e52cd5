"""The noise of `random_numbers.py` with torch. It has the same bits."""

from __future__ import annotations

from typing import NamedTuple

import torch

_MASK = 0xFFFFFFFF
_LOG_POLYNOMIAL = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)


class Keys(NamedTuple):
    """The keys of rows: int32 tensors of one shape."""

    first: torch.Tensor
    second: torch.Tensor
    third: torch.Tensor
    behind: torch.Tensor

    def of(self, rows: torch.Tensor | int) -> Keys:
        return Keys(*(each[rows] for each in self))


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> Keys:
    """Return the keys of rows. seeds, positions: int64, of one shape -> keys of that shape."""
    zeros = torch.zeros_like(positions)
    words = philox(seeds, positions & _MASK, (positions >> 32) & _MASK, zeros, zeros)
    return Keys(*(word.to(torch.int32) for word in words))


def philox(
    seed: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor, c3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute Philox4x32-10. seed: int64, all 64 bits; c0 to c3: int64 in [0, 2**32), of one shape -> four words like
    these."""
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        # Signed products have the same low bits as unsigned ones.
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((high >> 32) & _MASK) ^ c1 ^ k0,
            high & _MASK,
            ((low >> 32) & _MASK) ^ c3 ^ k1,
            low & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def mix(tokens: torch.Tensor, keys: Keys, out: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """Mix tokens and keys into `out`, from which both words are derived. tokens, out, scratch: int32, of one shape."""
    h = torch.bitwise_xor(tokens, keys.first, out=out)
    _xor_shifted_(h, 17, scratch).mul_(_signed(0xED5AD4BB)).bitwise_xor_(keys.second)
    _xor_shifted_(h, 11, scratch).mul_(_signed(0xAC4C1B51)).bitwise_xor_(keys.third)
    return _xor_shifted_(h, 15, scratch).mul_(_signed(0x31848BAB))


def first_word(mixed: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """Return the first word, 31 bits, int32. It overwrites `mixed`."""
    return _xor_shifted_(mixed, 14, scratch).bitwise_and_(0x7FFFFFFF)


def noise(tokens: torch.Tensor, keys: Keys) -> torch.Tensor:
    """Return Gumbel noise, fp32. tokens: int32, of the keys' shape."""
    mixed, scratch = torch.empty_like(tokens), torch.empty_like(tokens)
    behind = mix(tokens, keys, mixed, scratch) ^ keys.behind
    behind = _xor_shifted_(behind, 16, scratch).mul_(_signed(0x85EBCA6B))
    behind = _xor_shifted_(behind, 13, scratch).bitwise_and_(0x7FFFFFFF)
    v = first_word(mixed, scratch).float() * 2.0**-31 + (behind.float() + 0.5) * 2.0**-62
    v = v.clamp(max=0.99999994)
    series = v * (1.0 + v * (0.5 + v * (0.3333333333 + v * 0.25)))
    return -_log(series.where(v < 0.03125, -_log(1.0 - v)))


def _log(y: torch.Tensor) -> torch.Tensor:
    """Compute the logarithm with the same operations as the kernel."""
    bits = y.view(torch.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    x = (bits - (exponent << 23)).view(torch.float32) - 1.0
    p = x * _LOG_POLYNOMIAL[0]
    for coefficient in _LOG_POLYNOMIAL[1:-1]:
        p = (p + coefficient) * x
    p = p + _LOG_POLYNOMIAL[-1]
    square = x * x
    whole = exponent.float()
    rest = p * x * square + whole * -2.12194440e-4 - square * 0.5
    return x + rest + whole * 0.693359375


def _xor_shifted_(h: torch.Tensor, count: int, scratch: torch.Tensor) -> torch.Tensor:
    return h.bitwise_xor_(torch.bitwise_right_shift(h, count, out=scratch))


def _signed(word: int) -> int:
    """Return the same 32 bits as a signed number."""
    return (word ^ (1 << 31)) - (1 << 31)
