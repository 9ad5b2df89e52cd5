"""Rotary embedding moved from transformers modules into the attention operation."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.models.transformers_backend.late_rotary import LateRotary, RotaryForm, StepAngles, form_of
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.transformers_models import TABLES, save_transformers_model, transformers_runner


def _modeling(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("llama", RotaryForm(in_pairs=False, interleaved=False)),
        ("glm", RotaryForm(in_pairs=False, interleaved=True)),
        ("cohere", RotaryForm(in_pairs=True, interleaved=True)),
    ],
)
def test_a_rotary_function_is_recognized_by_its_results(name: str, form: RotaryForm) -> None:
    assert form_of(_modeling(name).apply_rotary_pos_emb) == form


def test_other_functions_are_not_replaced() -> None:
    def doubled(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        return tuple(2 * tensor for tensor in _modeling("llama").apply_rotary_pos_emb(q, k, cos, sin))

    assert form_of(doubled) is None
    assert form_of(lambda x, cos, sin: x) is None
    assert LateRotary.replace_in(torch.nn.Linear(1, 1), StepAngles()) is None


def test_angles_in_another_layout_are_not_used() -> None:
    form, cos = RotaryForm(in_pairs=False, interleaved=False), torch.arange(6.0).view(1, 3, 2)
    angles = form.row_angles(cos.repeat(1, 1, 2), -cos.repeat(1, 1, 2))
    assert angles is not None
    assert torch.equal(angles, torch.cat((cos, -cos), -1)[0])
    assert form.row_angles(cos, -cos) is None
    assert form.row_angles(cos[0], -cos[0]) is None


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize(("name", "calls_later"), [("starcoder2", 0), ("hunyuan", 2)])
def test_a_module_applies_rotary_in_its_first_step_only(
    name: str, calls_later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for a module that normalizes after rotary. Results are bitwise equal from the first step on."""
    calls = 0
    modeling = _modeling({"hunyuan": "hunyuan_v1_dense"}.get(name, name))
    original = modeling.apply_rotary_pos_emb

    def count_calls(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", count_calls)
    save_transformers_model(tmp_path, name)
    runner = transformers_runner(tmp_path)
    plans = plans_in_chunks([[5, 6, 7, 8]], TABLES, [[4]])
    first = run_plans(runner, plans)[0, 3]
    calls = 0
    assert torch.equal(run_plans(runner, plans)[0, 3], first)
    assert calls == calls_later
