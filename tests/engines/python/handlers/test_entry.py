"""Loading of a user's file: packages, and functions that return something to await."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
from djl_python import Input

from engines.python.handlers.entry import AsyncHandler, find_handler, load_module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the packages `shop` and `code`, which is also the name of a module of Python."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("shop", "shop.serve", "shop.prices", "serve", "prices"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for package, text in (
        ("shop", "from .prices import PRICE\n\n\ndef handle(inputs):\n    return PRICE\n"),
        ("code", "from prices import PRICE\n\n\ndef handle(inputs):\n    return PRICE\n"),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "serve.py").write_text(text)
        (tmp_path / package / "prices.py").write_text("PRICE = 7\n")
    return tmp_path


@pytest.mark.parametrize("package", ["shop", "code"])
def test_a_dotted_entry_point_can_import_its_package(folder: Path, package: str) -> None:
    module = load_module(folder / package / "serve.py", folder, f"{package}.serve")
    assert module.handle(Input()) == 7


def test_a_missing_import_of_a_package_is_reported(folder: Path) -> None:
    (folder / "shop" / "serve.py").write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load_module(folder / "shop" / "serve.py", folder, "shop.serve")


def test_a_file_has_no_package(folder: Path) -> None:
    assert load_module(folder / "code" / "serve.py", folder).handle(Input()) == 7
    with pytest.raises(ImportError, match="no known parent package"):
        load_module(folder / "shop" / "serve.py", folder)


def test_a_file_can_import_a_package_of_its_own_name(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "__init__.py").touch()
    (folder / "model" / "net.py").write_text("PRICE = 8\n")
    (folder / "model.py").write_text(
        "from model.net import PRICE\n\n\ndef handle(inputs):\n    return PRICE\n"
    )
    with patch.dict(sys.modules):
        sys.modules.pop("model", None)
        assert load_module(folder / "model.py", folder).handle(Input()) == 8


def test_with_async_mode_a_function_may_return_something_to_await() -> None:
    async def answer() -> int:
        return 7

    module = ModuleType("own")
    module.handle = lambda inputs: answer()  # type: ignore[attr-defined]
    assert find_handler(module, "handle", {}) is module.handle
    handler = find_handler(module, "handle", {"async_mode": "TRUE"})
    assert isinstance(handler, AsyncHandler)
    assert asyncio.run(handler(Input())) == 7
