"""Native kernels with each instruction set of this processor, with one and with three threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lmi_kernels.cpu import library as installed
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.team import Team

SETS = ("avx2", "avx512")
"""Instruction sets to test. Others differ from the last one only in products with int8 weights."""
Tensors = tuple[torch.Tensor, ...]


def library_path() -> Path | None:
    """Return the installed library, or the one that LMI_TEST_NATIVE_LIBRARY names."""
    other = os.environ.get("LMI_TEST_NATIVE_LIBRARY")
    return Path(other) if other else installed.library_path()


@pytest.fixture
def open_library() -> Iterator[Callable[[str], Library | None]]:
    """A function that opens the library with an instruction set, or returns None if the processor lacks it."""
    path = library_path()
    if path is None:
        pytest.skip("native kernels are not built here")

    def open_with(instructions: str) -> Library | None:
        try:
            return Library(path, instructions)
        except ValueError:
            return None

    yield open_with
    Library(path)


@pytest.fixture(params=SETS)
def library(request: pytest.FixtureRequest, open_library: Callable[[str], Library | None]) -> Library:
    library = open_library(request.param)
    if library is None:
        pytest.skip(f"this processor has no {request.param} instructions")
    return library


@pytest.fixture(params=[1, 3])
def team(request: pytest.FixtureRequest, library: Library) -> Team:
    return Team(library, request.param)


@pytest.fixture
def everywhere(
    open_library: Callable[[str], Library | None],
) -> Callable[[Callable[[Team], Tensors]], Tensors]:
    """A function that calls its argument with each instruction set and 1, 2 and 3 threads. The results must be
    bit-identical."""

    def run(call: Callable[[Team], Tensors]) -> Tensors:
        results = []
        for name in SETS:
            if (library := open_library(name)) is not None:
                results += [call(Team(library, count)) for count in (1, 2, 3)]
        for result in results[1:]:
            for found, first in zip(result, results[0], strict=True):
                torch.testing.assert_close(found, first, rtol=0.0, atol=0.0, equal_nan=True)
        return results[0]

    return run
