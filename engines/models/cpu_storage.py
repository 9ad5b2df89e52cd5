"""How a CPU holds matrices: native kernels as they are stored; torch packed as fp16 where that keeps every number of
a matrix, else in fp32.

Numbers of bf16 are exact in fp16 but for the smallest, of which a trained matrix nearly always has some; models that
were quantised once have none. Which kind a checkpoint is shows in some of its numbers. Knows no torch.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from pathlib import Path

_MOST_TENSORS = 16
_MOST_BYTES = 1 << 18
"""Of one tensor: where one number in 5,000 is not exact, 128 Ki of them show it."""
_MOST_HEADER_BYTES = 100_000_000


def native_element(stored: str, dtype: str, quantize: str = "none") -> int:
    """Bytes of a matrix's numbers for native kernels. stored and dtype are those of `cpu_element`."""
    if quantize == "int8":
        return 1
    return 2 if dtype != "fp32" or stored in ("float16", "bfloat16") else 4


def cpu_element(folder: Path, stored: str, dtype: str, load_format: str = "auto") -> int | None:
    """Bytes of a matrix's numbers on a CPU where torch serves, at most; None: they are packed as fp16, which
    `ModelConfig.weight_bytes` knows.

    stored: the checkpoint's dtype in torch's words; dtype: `option.dtype`, to which numbers are rounded.
    """
    if dtype == "fp16" or stored == "float16":
        return None
    if stored == "bfloat16" and load_format != "dummy" and _are_exact(folder):
        return None
    return 4


def _are_exact(folder: Path) -> bool:
    """Whether none of some numbers of the bf16 matrices in the folder's files is lost in fp16."""
    places = [place for file in sorted(folder.glob("*.safetensors")) for place in _matrices(file)]
    chosen = places[:: max(1, -(-len(places) // _MOST_TENSORS))]
    return all(is_exact(number) for place in chosen for number in set(_numbers(*place)))


def is_exact(number: int) -> bool:
    """Whether a bf16 number, by its bits, is one of fp16, too."""
    exponent, mantissa = number >> 7 & 0xFF, number & 0x7F
    if exponent == 0:
        return mantissa == 0
    # (128 + mantissa) * 2**(exponent - 134) has to be a multiple of 2**-24.
    return exponent <= 142 and (128 + mantissa) % (1 << max(0, 110 - exponent)) == 0


def _matrices(file: Path) -> list[tuple[Path, int, int]]:
    """File, offset and bytes of each; none where the file is not as it should be: loading says so."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length)) if length <= _MOST_HEADER_BYTES else {}
        return [
            (file, 8 + length + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] == "BF16" and len(entry["shape"]) > 1
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return []


def _numbers(file: Path, offset: int, size: int) -> array[int]:
    """Bits of numbers from the middle of a tensor."""
    count = min(size, _MOST_BYTES) // 2
    with file.open("rb") as opened:
        opened.seek(offset + (size // 2 - count) // 2 * 2)
        numbers = array("H", opened.read(2 * count)[: 2 * count])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
