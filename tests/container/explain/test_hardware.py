"""The catalogue of devices and instances."""

from __future__ import annotations

import re

import botocore.session
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


def gpu_instances() -> list[str]:
    """Return the instances with accelerators that SageMaker has for endpoints, as botocore knows them."""
    service = botocore.session.get_session().get_service_model("sagemaker")
    names = service.shape_for("ProductionVariantInstanceType").enum
    return [name for name in names if re.match(r"ml\.(g|gr|p|trn|inf|dl)\d", name)]


def test_every_instance_with_accelerators_is_known_or_refused_with_a_reason() -> None:
    unknown = [name for name in gpu_instances() if name not in instances()]
    assert "ml.trn1.32xlarge" in unknown
    for name in unknown:
        with pytest.raises(NoSuchHardwareError, match=f"^instance {name}: ") as caught:
            instance(name)
        assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ml.trn1.32xlarge", "not on Trainium"),
        ("ml.inf1.xlarge", "not on Inferentia"),
        ("ml.dl1.24xlarge", "not on Gaudi"),
        ("ml.p2.xlarge", "does not run on K80 (compute capability 3.7;"),
        ("ml.g7.2xlarge", "the speed of its GPU, RTX PRO 4500, is not in this table"),
        ("ml.p6e-gb200.36xlarge", "has an Arm processor; the image is for x86-64"),
    ],
)
def test_instances_are_refused_for_their_own_reason(name: str, reason: str) -> None:
    with pytest.raises(NoSuchHardwareError) as caught:
        instance(name)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "vcpus", "gib"),
    [
        ("ml.c7i.4xlarge", 16, 32),
        ("ml.m5d.large", 2, 8),
        ("ml.r6i.xlarge", 4, 32),
        ("ml.C5.18xlarge", 72, 144),
        ("ml.t2.medium", 0, 0),
        ("ml.c4.8xlarge", 0, 0),
    ],
)
def test_the_name_of_a_cpu_instance_tells_its_cores_and_memory(name: str, vcpus: int, gib: int) -> None:
    found = instance(name)
    assert (found.device, found.vcpus, found.memory_bytes) == (CPU, vcpus, gib * 1024**3)


def test_an_instance_with_a_disk_takes_no_volume() -> None:
    takes = {name: instance(name).takes_volume for name in ("ml.c7i.large", "ml.m5d.large", "ml.g5.xlarge")}
    assert takes == {"ml.c7i.large": True, "ml.m5d.large": False, "ml.g5.xlarge": False}


def test_the_newest_gpus_of_instances_are_known() -> None:
    assert (instance("ml.g7e.12xlarge").device, instance("ml.g7e.12xlarge").count) == (
        "RTX-PRO-6000-Server",
        2,
    )
    assert device(instance("ml.p6-b300.48xlarge").device).memory_bytes == 268e9


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
        ("instance", "ml.x9.large", "did you mean ml.g6.xlarge?"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_or_all_names(lookup: str, name: str, hint: str) -> None:
    with pytest.raises(NoSuchHardwareError) as caught:
        getattr(hardware, lookup)(name)
    assert f"(got {name})" in str(caught.value)
    assert hint in str(caught.value)
