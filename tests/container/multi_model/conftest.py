"""Fake models whose managers are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.container.multi_model.fakes import FakeModels


@pytest.fixture
def lab() -> Iterator[FakeModels]:
    models = FakeModels()
    yield models
    for manager in models.managers:
        manager.close()
