"""Kernels with a planted error: a module's source with one piece replaced, loaded under another name."""

from __future__ import annotations

import functools
import importlib.util
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import lmi_kernels
from lmi_kernels.checks import OpCheck
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

_MOST_TRIES = 12


@dataclass(frozen=True)
class Planted:
    """`right` stands exactly once in the module's source and is replaced by `wrong`."""

    what: str
    module: str
    check: str
    """The name of the `OpCheck` that must catch it."""
    right: str
    wrong: str


def assert_caught(planted: Planted, folder: Path) -> None:
    """The module's own check finds the error, and finds none without it."""
    source = _source(planted.module)
    assert source.count(planted.right) == 1, f"{planted.right!r} stands {source.count(planted.right)} times"
    _assert_right(planted.module, planted.check)
    wrong = _load(
        source.replace(planted.right, planted.wrong), f"wrong_{planted.module}", folder, planted.check
    )
    with pytest.raises(Exception):  # noqa: B017  a wrong result, or an index that the interpreter refuses
        _check_again_and_again(wrong)


def _check_again_and_again(check: OpCheck) -> None:
    """A wrong draw does not show with every seed."""
    for _ in range(_MOST_TRIES):
        check_parity(check, torch.float32, fresh_generator())


@functools.cache
def _assert_right(module: str, check: str) -> None:
    """Without an error nothing is found, in the same way; once is enough."""
    with tempfile.TemporaryDirectory() as folder:
        right = _load(_source(module), f"right_{module}", Path(folder), check)
        check_parity(right, torch.float32, fresh_generator())


def _source(module: str) -> str:
    return (Path(lmi_kernels.__file__).parent / f"{module}.py").read_text(encoding="utf-8")


def _load(source: str, name: str, folder: Path, check: str) -> OpCheck:
    # In a file, because Triton reads its kernels' source from there.
    file = folder / f"{name}.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return {each.name: each for each in module.CHECKS}[check]
