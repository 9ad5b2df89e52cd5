"""Which checkpoints a CPU holds as packed fp16, known before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.models.cpu_storage import cpu_element, is_exact


def _folder(path: Path, matrix: torch.Tensor) -> Path:
    zeros = torch.zeros(300, 300, dtype=torch.bfloat16)
    save_file(
        {"a": zeros, "m.weight": matrix, "norm": torch.full((9,), 1e-7).bfloat16()}, path / "x.safetensors"
    )
    return path


def test_a_number_is_exact_when_it_survives_fp16() -> None:
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16)
    values = numbers.view(torch.bfloat16).float()
    survives = (values.half().float() == values) & values.isfinite()
    assert [is_exact(number & 0xFFFF) for number in numbers.tolist()] == survives.tolist()


def test_a_trained_models_bf16_counts_4_bytes_and_a_quantised_ones_is_packed(tmp_path: Path) -> None:
    natural = torch.randn(300, 300, generator=torch.Generator().manual_seed(1)).mul_(0.02).bfloat16()
    assert cpu_element(_folder(tmp_path, natural), "bfloat16", "fp32") == 4
    assert cpu_element(tmp_path, "bfloat16", "bf16") == 4
    assert cpu_element(tmp_path, "bfloat16", "fp16") is None, "rounded to fp16"
    quantised = natural.float().mul_(2**12).round_().div_(2**12).bfloat16()
    assert cpu_element(_folder(tmp_path, quantised), "bfloat16", "fp32") is None
    assert cpu_element(tmp_path, "bfloat16", "fp32", "dummy") == 4


@pytest.mark.parametrize(("stored", "element"), [("float16", None), ("float32", 4)])
def test_other_checkpoints_need_no_look(stored: str, element: int | None, tmp_path: Path) -> None:
    assert cpu_element(tmp_path / "nothing", stored, "fp32") is element


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b'\x09\0\0\0\0\0\0\0{"a": {}}']
)
def test_a_broken_file_is_no_error_here_and_loading_tells_what_is_wrong(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    assert cpu_element(tmp_path, "bfloat16", "fp32") is None
