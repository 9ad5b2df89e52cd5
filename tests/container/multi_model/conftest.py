"""Fake models whose managers are closed after the test, and clients of their router."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.container.multi_model.clients import client_of
from tests.container.multi_model.fakes import FakeModels


@pytest.fixture
def lab() -> Iterator[FakeModels]:
    models = FakeModels()
    yield models
    for manager in models.managers:
        manager.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / "models" / name / "model").mkdir(parents=True)
    return tmp_path / "models"


@pytest.fixture
def platform(lab: FakeModels, root: Path) -> FlaskClient:
    """A client of a router with SAGEMAKER_MULTI_MODEL=true, and memory for two models."""
    return client_of(lab.manager(limit=25), root)


@pytest.fixture
def folder(lab: FakeModels) -> FlaskClient:
    """A client of a router with models a, b and c, and memory for two."""
    return client_of(lab.manager("a", "b", "c", limit=25))
