"""The catalogue of devices and instances."""

from __future__ import annotations

import pytest

from container.explain import hardware
from container.explain.hardware import CPU, NoSuchHardwareError, device, devices, instance, instances

FORMATS = {"fp32", "fp16", "bf16", "fp8", "int8"}


@pytest.mark.parametrize("name", list(devices()))
def test_every_device_has_a_source_and_plausible_figures(name: str) -> None:
    entry = device(name)
    assert entry.source.startswith("docs/" if name == CPU else "https://")
    assert set(entry.flops) <= FORMATS
    assert 10e9 < entry.memory_bytes < 300e9
    assert 10e9 < entry.bandwidth < 10e12
    assert 1e9 <= entry.link < 2e12
    assert all(100e9 < rate < 5e15 for rate in entry.flops.values())


def test_rates_are_dense_and_int8_is_twice_as_fast_as_fp16() -> None:
    """Data sheets often give rates with sparsity, which are twice as high."""
    for entry in devices().values():
        if {"fp16", "int8"} <= set(entry.flops):
            assert entry.flops["int8"] == pytest.approx(2 * entry.flops["fp16"], rel=0.02)


@pytest.mark.parametrize("name", list(instances()))
def test_an_instance_has_known_devices(name: str) -> None:
    entry = instance(name)
    assert device(entry.device).compute_capability or entry.device == "Inferentia2"
    assert entry.count >= 1
    assert entry.vcpus >= 4
    assert entry.network <= 12.5e9, "bandwidth of one network card"
    assert entry.source.startswith("https://")


def test_the_cpu_has_no_compute_capability() -> None:
    assert not device(CPU).compute_capability


def test_names_are_case_insensitive() -> None:
    assert instance("ML.G5.48XLARGE").count == 8
    assert device("a10g").memory_bytes == 24e9


@pytest.mark.parametrize(
    ("lookup", "name", "hint"),
    [
        ("device", "A100", "did you mean A100-40GB or A100-80GB?"),
        ("device", "H20", "did you mean H200?"),
        ("device", "xyz", "known: V100, T4,"),
        ("instance", "g5.48xlarge", "did you mean ml.g5.48xlarge?"),
        ("instance", "xyz", "known: ml.g4dn, ml.g5, "),
    ],
)
def test_an_unknown_name_gets_a_suggestion_or_all_names(lookup: str, name: str, hint: str) -> None:
    with pytest.raises(NoSuchHardwareError) as caught:
        getattr(hardware, lookup)(name)
    assert f"(got {name})" in str(caught.value)
    assert hint in str(caught.value)
