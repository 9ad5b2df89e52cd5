"""Each engine's process has one thread pool of several threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.health import StatusBoard
from engines.mpi import worker as mpi_worker
from engines.python import worker as python_worker
from lmi_kernels.cpu import shared_team, team
from tests.support.dynamic_engine import make_dynamic_config
from tests.support.engine_process import make_config


class _Loading(Exception):
    """Raised instead of loading the model."""


def _load(*arguments: object) -> None:
    raise _Loading


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the numbers of threads after the test."""
    monkeypatch.setattr(team, "_num_threads", None)
    monkeypatch.setattr(team, "_team", None)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _numbers() -> tuple[int, int]:
    """Return the numbers of threads of native kernels and of torch."""
    if (native := shared_team()) is None:
        pytest.skip("native kernels are not built here")
    return native.num_threads, torch.get_num_threads()


def _with_threads(config: Any, device: str) -> Any:
    return replace(config, parallel=replace(config.parallel, threads_per_rank=3, device=device))


@pytest.mark.parametrize(("device", "numbers"), [("cpu", (3, 1)), ("cuda", (1, 3))])
def test_a_rank_gives_its_threads_to_native_kernels_on_a_cpu_and_to_torch_on_a_gpu(
    device: str, numbers: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _with_threads(make_config(tmp_path), device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(mpi_worker, "make_communicator", _load)
    with pytest.raises(_Loading):
        mpi_worker._start(config, StatusBoard.create(tmp_path / "status", 1), tmp_path)
    assert _numbers() == numbers


def test_the_generating_process_gives_its_threads_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StatusBoard.create(tmp_path / "status", 2)
    (tmp_path / "config").write_text(_with_threads(make_dynamic_config(tmp_path), "cpu").to_json())
    arguments: Any = SimpleNamespace(status=tmp_path / "status", config=tmp_path / "config")
    link: Any = None
    monkeypatch.setattr(python_worker, "transformers", SimpleNamespace(utils=_QUIET))
    monkeypatch.setattr(python_worker, "load_model", _load)
    with pytest.raises(_Loading):
        python_worker._load(arguments, link)
    assert _numbers() == (1, 3)


_QUIET = SimpleNamespace(
    logging=SimpleNamespace(set_verbosity_error=lambda: None, disable_progress_bar=lambda: None)
)
"""Instead of transformers' functions, whose effects last."""
