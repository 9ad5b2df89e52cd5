"""The loop of rank 0 with a fake model, with either allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.mpi.leader_lab import Lab


@pytest.fixture(params=[True, False], ids=["paged", "contiguous"])
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    return Lab(tmp_path, paged=request.param)
