"""Selection of launch parameters: those of the GPU, of its compute capability, or the defaults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lmi_kernels import tuning

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def clear_cached_tables() -> Iterator[None]:
    tuning.tables.cache_clear()
    yield
    tuning.tables.cache_clear()


def _fake_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB"])
def test_hopper_gpus_of_any_name_get_the_parameters_of_their_capability(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_gpu(monkeypatch, name, (9, 0))
    found = tuning.parameters("varlen_attention", "head_dim_128", GPU)
    assert found == tuning._table("sm_90")["varlen_attention"]["head_dim_128"]
    assert found != tuning._table(tuning.DEFAULT)["varlen_attention"]["head_dim_128"]


def test_a_capability_without_a_file_gets_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_gpu(monkeypatch, "NVIDIA A10G", (8, 6))
    assert tuning.tables(GPU) == ("NVIDIA_A10G", "sm_86", tuning.DEFAULT)
    found = tuning.parameters("varlen_attention", "head_dim_128", GPU)
    assert found == tuning._table(tuning.DEFAULT)["varlen_attention"]["head_dim_128"]


def test_the_file_of_the_device_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_gpu(monkeypatch, "NVIDIA H200", (9, 0))
    own = {"NVIDIA_H200": {"experts_down": {"1": {"block_m": 99}}}}
    table = tuning._table
    monkeypatch.setattr(tuning, "_table", lambda name: own.get(name) or table(name))
    assert tuning.parameters("experts_down", "1", GPU) == {"block_m": 99}
    assert tuning.parameters("experts_down", "8", GPU) == table("sm_90")["experts_down"]["8"]


def test_missing_parameters_are_an_error() -> None:
    with pytest.raises(KeyError, match="no launch parameters for experts, 7"):
        tuning.parameters("experts", "7", torch.device("cpu"))
