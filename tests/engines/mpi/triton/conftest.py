"""Of the step loop in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bounded_memory import bounded_memory


@pytest.fixture(autouse=True)
def kernels_keep_to_their_tensors() -> Iterator[None]:
    with bounded_memory():
        yield
