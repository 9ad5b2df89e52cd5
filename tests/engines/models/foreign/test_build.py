"""Several ranks building their modules in one process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from accelerate import init_empty_weights

from engines.models.foreign.build import _Builder
from tests.support.foreign_models import differences, foreign_runner, save_foreign
from tests.support.thread_ranks import run_ranks

_TIMEOUT_SECONDS = 200


def test_ranks_read_their_weights_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_foreign(tmp_path, "starcoder2")
    barrier = threading.Barrier(2, timeout=_TIMEOUT_SECONDS)
    fill = _Builder.fill

    def fill_after_barrier(builder: _Builder) -> None:
        barrier.wait()
        fill(builder)

    monkeypatch.setattr(_Builder, "fill", fill_after_barrier)
    assert len(run_ranks(2, lambda comm: foreign_runner(tmp_path, comm))) == 2


def test_weights_are_filled_while_another_module_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_foreign(tmp_path, "starcoder2")
    fill = _Builder.fill

    def fill_during_build(builder: _Builder) -> None:
        with init_empty_weights():
            fill(builder)

    monkeypatch.setattr(_Builder, "fill", fill_during_build)
    worst, same = differences(tmp_path)
    assert worst < 1e-4
    assert same
