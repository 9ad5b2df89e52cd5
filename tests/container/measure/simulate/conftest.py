"""Model folders with a config.json and no weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.container.measure.simulate.made_up import FALCON_40B, LLAMA_8B, write_model


@pytest.fixture(scope="session")
def falcon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("falcon"), FALCON_40B)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama"), LLAMA_8B)
