"""Native kernels under each instruction set that this processor has, by one thread and by three."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lmi_kernels.cpu.library import INSTRUCTIONS, Library, library_path
from lmi_kernels.cpu.team import Team


@pytest.fixture
def open_library() -> Iterator[Callable[[str], Library | None]]:
    """The library with an instruction set; None where the processor lacks it."""
    path = library_path()
    if path is None:
        pytest.skip("native kernels are not built here")

    def opened(instructions: str) -> Library | None:
        try:
            return Library(path, instructions)
        except ValueError:
            return None

    yield opened
    Library(path)


@pytest.fixture(params=INSTRUCTIONS)
def library(request: pytest.FixtureRequest, open_library: Callable[[str], Library | None]) -> Library:
    library = open_library(request.param)
    if library is None:
        pytest.skip(f"this processor has no {request.param} instructions")
    return library


@pytest.fixture(params=[1, 3])
def team(request: pytest.FixtureRequest, library: Library) -> Team:
    return Team(library, request.param)
