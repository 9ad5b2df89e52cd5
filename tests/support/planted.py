"""Kernels with a planted error: a module with one piece of its source replaced, checked in place of the right one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

import lmi_kernels
from tests.kernels.references.check import MODULES, OpCheck
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

_MOST_TRIES = 12


@dataclass(frozen=True)
class Planted:
    """`right` stands exactly once in the module's source and is replaced by `wrong`."""

    what: str
    module: str
    """In `lmi_kernels`."""
    check: str
    """The name of the `OpCheck` that must catch it."""
    right: str
    wrong: str
    between: tuple[str, ...] = ()
    """Modules in `lmi_kernels` through which the checked operation uses this one, each after those that it imports."""


def assert_caught(planted: Planted, folder: Path) -> None:
    """The operation's own check finds the error. That it finds nothing without one, test_parity.py shows."""
    file = Path(lmi_kernels.__file__).parent.joinpath(*planted.module.split(".")).with_suffix(".py")
    source = file.read_text(encoding="utf-8")
    assert source.count(planted.right) == 1, f"{planted.right!r} stands {source.count(planted.right)} times"
    # In a file, because Triton reads its kernels' source from there.
    wrong = folder / "wrong.py"
    wrong.write_text(source.replace(planted.right, planted.wrong), encoding="utf-8")
    check = _check_of(planted, wrong)
    with pytest.raises(Exception):  # noqa: B017  a wrong result, or an index that the interpreter refuses
        _check_again_and_again(check)


def _check_again_and_again(check: OpCheck) -> None:
    """A wrong draw does not show with every seed."""
    for _ in range(_MOST_TRIES):
        check_parity(check, torch.float32, fresh_generator())


def _check_of(planted: Planted, wrong: Path) -> OpCheck:
    """The check, of operations that use the wrong module."""
    (reference,) = (
        name
        for name in MODULES
        if any(check.name == planted.check for check in importlib.import_module(name).CHECKS)
    )
    with patch.dict(sys.modules):
        _execute(f"lmi_kernels.{planted.module}", wrong)
        for name in (*(f"lmi_kernels.{each}" for each in planted.between), reference):
            module = _execute(name, Path(str(sys.modules[name].__file__)))
    return {check.name: check for check in module.CHECKS}[planted.check]


def _execute(name: str, file: Path) -> ModuleType:
    """The module of this name, made anew from a file."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
