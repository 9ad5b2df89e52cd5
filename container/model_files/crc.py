"""CRC-64/NVME and CRC-32C, which S3 keeps of objects and the standard library does not compute, at numpy's speed.

A CRC that starts at 0 is linear: a block is cut into many lanes that advance together, two bytes a step, and the values
of the lanes are joined two by two: `crc(a + b) = shift(crc(a), len(b)) ^ crc(b)`, where `shift` passes zero bytes.
Leading zeros change nothing, so a short block is one with zeros before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_LANES_LOG2 = 14
_LANE_BYTES = 256
BLOCK_BYTES = _LANE_BYTES << _LANES_LOG2


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Reflected, with all bits set at the start and inverted at the end."""

    value: int
    bits: int


CRC64NVME = Polynomial(0x9A6C9329AC4BC9B5, 64)
CRC32C = Polynomial(0x82F63B78, 32)


class Crc:
    """As hashlib's objects are: `update`, `digest`. Bytes of the digest: big endian, as S3 writes it."""

    def __init__(self, polynomial: Polynomial) -> None:
        self._bits = polynomial.bits
        self._ones = (1 << polynomial.bits) - 1
        self._pairs = _table(polynomial, 16)
        """What two bytes do: [65536]."""
        # shifts[i] passes 2**i zero bytes; each is the one before it, twice.
        single = np.array([1 << bit for bit in range(64)], dtype=np.uint64)
        images = _table(polynomial, 8)[(single & np.uint64(0xFF)).astype(np.intp)] ^ (single >> np.uint64(8))
        self._shifts: list[Words] = []
        for _ in range(BLOCK_BYTES.bit_length()):
            self._shifts.append(_operator(images))
            images = _apply(self._shifts[-1], images)
        self._value = np.full(1, self._ones, dtype=np.uint64)

    def update(self, data: bytes, /) -> None:
        for start in range(0, len(data), BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            for power in range(BLOCK_BYTES.bit_length()):
                if len(block) >> power & 1:
                    self._value = _apply(self._shifts[power], self._value)
            self._value = self._value ^ self._of_block(block)

    def digest(self) -> bytes:
        return (int(self._value[0]) ^ self._ones).to_bytes(self._bits // 8, "big")

    def _of_block(self, block: bytes) -> Words:
        """The CRC of a block, begun with 0: [1]."""
        padded = np.frombuffer(block.rjust(BLOCK_BYTES, b"\0"), dtype="<u2").reshape(1 << _LANES_LOG2, -1)
        columns = np.ascontiguousarray(padded.T)
        lanes = np.zeros(1 << _LANES_LOG2, dtype=np.uint64)
        for column in columns:
            lanes = self._pairs[lanes.astype(np.uint16) ^ column] ^ (lanes >> np.uint64(16))
        power = _LANE_BYTES.bit_length() - 1
        while len(lanes) > 1:
            lanes = _apply(self._shifts[power], lanes[0::2]) ^ lanes[1::2]
            power += 1
        return lanes


def _table(polynomial: Polynomial, bits: int) -> Words:
    """What the register becomes after so many steps from each of its lowest values: [2**bits]."""
    values = np.arange(1 << bits, dtype=np.uint64)
    one, value = np.uint64(1), np.uint64(polynomial.value)
    for _ in range(bits):
        values = (values >> one) ^ ((values & one) * value)
    return values


def _operator(images: Words) -> Words:
    """A linear map, given by where it sends each of the 64 bits, as a table for each byte: [8, 256]."""
    numbers = np.arange(256)
    tables = np.zeros((8, 256), dtype=np.uint64)
    for bit in range(64):
        tables[bit // 8][(numbers >> (bit % 8) & 1).astype(bool)] ^= images[bit]
    return tables


def _apply(tables: Words, values: Words) -> Words:
    result = np.zeros_like(values)
    for place in range(8):
        result ^= tables[place][(values >> np.uint64(8 * place) & np.uint64(0xFF)).astype(np.intp)]
    return result
