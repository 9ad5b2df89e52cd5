"""Arrays in numpy's own formats. Object arrays are refused: reading them would run code."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def from_bytes(data: bytes) -> list[Any]:
    """Return the arrays of an `.npy` or `.npz`. Raises `ValueError`: it is neither, or holds objects."""
    import numpy

    loaded = numpy.load(io.BytesIO(data), allow_pickle=False)
    if isinstance(loaded, numpy.ndarray):
        return [loaded]
    return [loaded[name] for name in loaded.files]


def to_bytes(value: Any) -> bytes:
    """Write an array as `.npy`, a list or tuple of arrays as `.npz`."""
    import numpy

    if isinstance(value, list | tuple):
        return to_npz(value)
    file = io.BytesIO()
    numpy.save(file, numpy.asarray(value), allow_pickle=False)
    return file.getvalue()


def to_npz(values: Sequence[Any]) -> bytes:
    """Write arrays as `.npz`, named `arr_0` and so on."""
    import numpy

    file = io.BytesIO()
    numpy.savez(file, *(numpy.asarray(value) for value in values))
    return file.getvalue()
