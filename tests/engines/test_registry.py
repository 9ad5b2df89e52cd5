"""Registries list names without importing their targets."""

from __future__ import annotations

import colorsys
import sys

import pytest

from engines.registry import Registry

_TARGETS = {
    "good": "colorsys:rgb_to_hsv",
    "no module": "engines.nowhere:Thing",
    "no name": "colorsys:nothing",
}


def test_a_name_returns_its_imported_target() -> None:
    assert Registry(_TARGETS)["good"] is colorsys.rgb_to_hsv


def test_listing_imports_nothing() -> None:
    registry = Registry(_TARGETS)
    assert list(registry) == list(_TARGETS)
    assert len(registry) == 3
    assert "no module" in registry
    assert "engines.nowhere" not in sys.modules


def test_an_unknown_name_raises_a_key_error() -> None:
    registry = Registry(_TARGETS)
    assert "other" not in registry
    assert registry.get("other") is None
    with pytest.raises(KeyError):
        registry["other"]


def test_a_missing_target_raises_on_access() -> None:
    with pytest.raises(ModuleNotFoundError):
        Registry(_TARGETS)["no module"]
    with pytest.raises(AttributeError):
        Registry(_TARGETS)["no name"]


def test_the_targets_are_copied() -> None:
    targets = dict(_TARGETS)
    registry = Registry(targets)
    targets.clear()
    assert len(registry) == 3
