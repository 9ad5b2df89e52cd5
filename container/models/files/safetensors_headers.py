"""Check by its header that a safetensors file is complete. Does not use the engine's reader, which needs torch.

The format (huggingface.co/docs/safetensors): u64 header length, JSON header, tensors without gaps. Sums of sizes cannot
overflow, because Python's integers are unbounded.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_MAX_DIMENSIONS = 64
_MAX_NUMBER = 2**63
"""Limits of shapes and offsets. A product of large numbers of any count would take hours."""
_DTYPE_BITS = {
    name: bits
    for bits, names in {
        64: "F64 I64 U64 C64",
        32: "F32 I32 U32",
        16: "F16 BF16 I16 U16",
        8: "I8 U8 BOOL F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        4: "F4",
    }.items()
    for name in names.split()
}


class DamagedFile(Exception):
    """The file is not a complete safetensors file. The message is meant to follow the file's name."""


def require_complete(path: Path) -> int:
    """Check that the file has exactly the size that its header states. Reads the header only.

    Returns: the number of elements of all tensors. Raises: DamagedFile.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size + 1
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise DamagedFile(f"its header does not fit into its {size} bytes")
        try:
            header: Any = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise DamagedFile("its header is not JSON") from None
    if not isinstance(header, dict):
        raise DamagedFile("its header is not a JSON object")
    stop = 0
    spans = sorted(_span(name, entry) for name, entry in header.items() if name != "__metadata__")
    for begin, end, name in spans:
        if begin != stop:
            raise DamagedFile(f"tensor {name!r} does not start where the one before it ends")
        stop = end
    if 8 + length + stop != size:
        raise DamagedFile(f"it has {size} bytes, its header states {8 + length + stop}")
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _span(name: str, entry: Any) -> tuple[int, int, str]:
    """Return (start, end, name) of one tensor: its half-open byte range, from the end of the header."""
    shown = name if len(name) <= 120 else f"{name[:120]}..."
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise DamagedFile(f"tensor {shown!r} is not described properly") from None
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise DamagedFile(f"the shape of tensor {shown!r} is not a list of at most {_MAX_DIMENSIONS} numbers")
    numbers = [*shape, begin, end]
    if any(type(number) is not int or not 0 <= number <= _MAX_NUMBER for number in numbers) or end < begin:
        raise DamagedFile(f"tensor {shown!r} is not described in whole numbers from 0 to 2**63")
    bits = _DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is not None and math.prod(shape) * bits != (end - begin) * 8:
        raise DamagedFile(f"the size of tensor {shown!r} does not match its shape")
    return begin, end, shown
