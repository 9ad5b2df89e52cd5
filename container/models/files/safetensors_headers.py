"""Check by its header that a safetensors file is complete. Does not use the engine's reader, which needs torch."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import safe_open


def require_complete(path: Path) -> int:
    """Check that the file has exactly the size that its header states. Reads the header only.

    Returns: the number of elements of all tensors. Raises: safetensors.SafetensorError, OSError.
    """
    with safe_open(path, "np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  not a mapping
