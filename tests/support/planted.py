"""Kernels with a planted error: a copy of a module with one piece of its source replaced, checked instead of it."""

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

_MAX_TRIES = 12


@dataclass(frozen=True)
class PlantedError:
    """An error: `wrong` replaces `right`, which occurs exactly once in the module's source."""

    what: str
    module: str
    """A module of `lmi_kernels`."""
    check: str
    """The name of the `OpCheck` that must catch the error."""
    right: str
    wrong: str
    between: tuple[str, ...] = ()
    """Modules of `lmi_kernels` through which the checked operation uses this module, in import order."""


def assert_caught(planted: PlantedError, folder: Path) -> None:
    """Assert that the operation's check finds the error. test_parity.py shows that it passes without one."""
    file = Path(lmi_kernels.__file__).parent.joinpath(*planted.module.split(".")).with_suffix(".py")
    source = file.read_text(encoding="utf-8")
    assert source.count(planted.right) == 1, f"{planted.right!r} occurs {source.count(planted.right)} times"
    # Triton needs a file, since it reads the source of kernels from there.
    wrong = folder / "wrong.py"
    wrong.write_text(source.replace(planted.right, planted.wrong), encoding="utf-8")
    check = _check_of(planted, wrong)
    with pytest.raises(Exception):  # noqa: B017  a wrong result, or an index that the interpreter refuses
        _check_repeatedly(check)


def _check_repeatedly(check: OpCheck) -> None:
    """Check with several seeds, since not every seed exposes a wrong random draw."""
    for _ in range(_MAX_TRIES):
        check_parity(check, torch.float32, fresh_generator())


def _check_of(planted: PlantedError, wrong: Path) -> OpCheck:
    """The check, for operations that use the wrong module."""
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
    """Execute a file as the module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
