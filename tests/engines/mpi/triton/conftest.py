"""Fixtures for tests of the step loop in the Triton interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bounded_memory import bounded_memory


@pytest.fixture(autouse=True)
def kernels_stay_in_bounds() -> Iterator[None]:
    with bounded_memory():
        yield
