"""Several ranks that build their modules in one process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from accelerate import init_empty_weights

from engines.models.foreign.build import _Builder
from tests.support.foreign_models import differences, foreign_runner, save_foreign
from tests.support.thread_ranks import run_ranks

_PATIENCE_SECONDS = 200


def test_ranks_read_their_weights_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_foreign(tmp_path, "starcoder2")
    together = threading.Barrier(2, timeout=_PATIENCE_SECONDS)
    fill = _Builder.fill

    def fill_together(builder: _Builder) -> None:
        together.wait()
        fill(builder)

    monkeypatch.setattr(_Builder, "fill", fill_together)
    assert len(run_ranks(2, lambda comm: foreign_runner(tmp_path, comm))) == 2


def test_a_module_gets_its_weights_while_another_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_foreign(tmp_path, "starcoder2")
    fill = _Builder.fill

    def fill_meanwhile(builder: _Builder) -> None:
        with init_empty_weights():
            fill(builder)

    monkeypatch.setattr(_Builder, "fill", fill_meanwhile)
    worst, same = differences(tmp_path)
    assert worst < 1e-4
    assert same
