"""The catalogue of devices and instances."""

from __future__ import annotations

import pytest

from container.explain import hardware
from container.explain.hardware import CPU, NoSuchHardwareError, device, devices, instance, instances

FORMATS = {"fp32", "fp16", "bf16", "fp8", "int8"}


@pytest.mark.parametrize("name", list(devices()))
def test_every_figure_has_a_source_and_a_plausible_size(name: str) -> None:
    found = device(name)
    assert found.source.startswith("docs/" if name == CPU else "https://")
    assert set(found.flops) <= FORMATS
    assert 10e9 < found.memory_bytes < 300e9
    assert 10e9 < found.bandwidth < 10e12
    assert 1e9 <= found.link < 2e12
    assert all(100e9 < rate < 5e15 for rate in found.flops.values())


def test_rates_are_dense_and_sixteen_bits_are_twice_eight() -> None:
    """Data sheets print rates with sparsity, twice as high."""
    for found in devices().values():
        if {"fp16", "int8"} <= set(found.flops):
            assert found.flops["int8"] == pytest.approx(2 * found.flops["fp16"], rel=0.02)


@pytest.mark.parametrize("name", list(instances()))
def test_an_instance_has_known_devices(name: str) -> None:
    found = instance(name)
    assert device(found.device).compute_capability or found.device == "Inferentia2"
    assert found.count >= 1
    assert found.vcpus >= 4
    assert found.network <= 12.5e9, "of one network card"
    assert found.source.startswith("https://")


def test_the_cpu_is_no_accelerator() -> None:
    assert not device(CPU).compute_capability


def test_names_are_found_in_any_case() -> None:
    assert instance("ML.G5.48XLARGE").count == 8
    assert device("a10g").memory_bytes == 24e9


@pytest.mark.parametrize(
    ("find", "name", "hint"),
    [
        ("device", "A100", "did you mean A100-40GB or A100-80GB?"),
        ("device", "H20", "did you mean H200?"),
        ("device", "xyz", "known: V100, T4,"),
        ("instance", "g5.48xlarge", "did you mean ml.g5.48xlarge?"),
        ("instance", "xyz", "known: ml.g4dn, ml.g5, "),
    ],
)
def test_an_unknown_name_gets_the_nearest_or_all(find: str, name: str, hint: str) -> None:
    with pytest.raises(NoSuchHardwareError) as refusal:
        getattr(hardware, find)(name)
    assert f"(got {name})" in str(refusal.value)
    assert hint in str(refusal.value)
