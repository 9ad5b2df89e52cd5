"""Native kernels under each instruction set that this processor has, by one thread and by three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmi_kernels.cpu.library import Library, library_path
from lmi_kernels.cpu.team import Team


@pytest.fixture(params=["avx2", "avx512"])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    path = library_path()
    if path is None:
        pytest.skip("native kernels are not built here")
    try:
        yield Library(path, request.param)
    except ValueError as error:
        pytest.skip(str(error))
    finally:
        Library(path)


@pytest.fixture(params=[1, 3])
def team(request: pytest.FixtureRequest, library: Library) -> Team:
    return Team(library, request.param)
