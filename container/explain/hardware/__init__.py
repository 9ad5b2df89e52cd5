"""Devices and instances, with the figures that predictions need, from devices.json and instances.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from lmi_server.values.nearest import nearest

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or the CPU of a machine. Rates are dense, without sparsity."""

    name: str
    memory_bytes: int
    """Published size, in powers of ten where the source says GB. A driver's number differs by a few percent."""
    bandwidth: float
    """Bytes per second between the device and its memory."""
    flops: Mapping[str, float]
    """Matrix-product operations per second by dtype: fp32, fp16, bf16, fp8, int8. Unsupported dtypes are absent."""
    link: float
    """Bytes per second, one way, from one device to the others of an instance."""
    source: str
    """Where the figures are published."""
    compute_capability: str = ""
    """NVIDIA's compute capability; empty if this server's GPU kernels do not run on the device."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A cloud instance, such as ml.g5.48xlarge."""

    name: str
    device: str
    count: int
    """Number of devices."""
    vcpus: int
    """0 if unknown."""
    memory_bytes: int
    """Main memory; 0 if unknown."""
    disk_bytes: int
    """Local storage; 0 if there is none."""
    network: float
    """Sustained bytes per second to storage such as S3. Capped at 100 Gbit/s, assumed for one network card."""
    source: str

    @property
    def takes_volume(self) -> bool:
        """Whether SageMaker accepts a volume size: not if the instance has a disk, such as ml.m5d.large."""
        return not self.disk_bytes and not re.match(r"ml\.[a-z]+\d+[a-z]*d", self.name)


CPU = "CPU"
"""Name of the device that is not an accelerator."""
_CPU_INSTANCE = re.compile(
    r"ml\.(?P<family>[cmrt])(?P<generation>\d)\w*\.(?P<factor>\d*)(?P<size>medium|large|xlarge)"
)
_GIB_PER_VCPU = {"c": 2, "m": 4, "r": 8}
"""Memory for each vCPU, by family, from the fifth generation on."""
_CPU_NETWORK = 1.25e9
"""Network bandwidth of instances without accelerators in bytes per second. They have up to 10 Gbit/s or more."""
_MIN_CAPABILITY = 7.5
"""Lowest compute capability that CUDA 13 supports."""
_INSTANCE = re.compile(
    r"ml\.(?P<family>[a-z]+)(?P<generation>\d+)(?P<features>[a-z]*)(-(?P<chip>[a-z]+)\d+)?\..*"
)
_OTHER_ACCELERATORS = {"trn": "Trainium", "inf": "Inferentia", "dl": "Gaudi"}
"""Accelerators by the family of their instances."""


class NoSuchHardwareError(ValueError):
    """No device or instance has this name. The message suggests the nearest names."""


def device(name: str) -> Device:
    """Return the device with this name. Raises NoSuchHardwareError."""
    return _found("device", name, devices())


def instance(name: str) -> Instance:
    """Return the instance with this name. Those without accelerators are not in instances.json.

    Raises NoSuchHardwareError.
    """
    if name.lower() not in instances() and (reason := instance_obstacle(name)):
        raise NoSuchHardwareError(f"instance {name}: {reason}")
    return _cpu_instance(name.lower()) or _found("instance", name, instances())


@cache
def devices() -> Mapping[str, Device]:
    return {found.name: found for found in _read("devices.json", Device)}


@cache
def instances() -> Mapping[str, Instance]:
    return {found.name: found for found in _read("instances.json", Instance)}


def image_obstacle(device: Device) -> str:
    """Return why this server's images do not run on a device; empty if one does."""
    capability = device.compute_capability
    if not capability:
        return "" if device.name == CPU else _not_supported(device.name)
    return "" if float(capability) >= _MIN_CAPABILITY else _too_old(device.name, capability)


def instance_obstacle(name: str) -> str:
    """Return why an instance without an entry in instances.json is refused; empty if its name tells no reason."""
    match = _INSTANCE.fullmatch(name.lower())
    if match is None:
        return ""
    if accelerator := _OTHER_ACCELERATORS.get(match["family"]):
        return _not_supported(accelerator)
    if "g" in match["features"] or match["chip"] == "gb":
        return "has an Arm processor; the image is for x86-64"
    family = f"{match['family']}{match['generation']}{match['features']}"
    if family == "p2":
        return _too_old("K80", "3.7")
    return "the speed of its GPU, RTX PRO 4500, is not in this table" if family == "g7" else ""


def _cpu_instance(name: str) -> Instance | None:
    """Return an instance without accelerators. Those before the fifth generation get 0 vCPUs and bytes of memory."""
    if (match := _CPU_INSTANCE.fullmatch(name)) is None:
        return None
    ratio = _GIB_PER_VCPU.get(match["family"], 0) if match["generation"] >= "5" else 0
    vcpus = (4 * int(match["factor"] or 1) if match["size"] == "xlarge" else 2) if ratio else 0
    return Instance(name, CPU, 1, vcpus, vcpus * ratio * 1024**3, 0, _CPU_NETWORK, "")


def _not_supported(accelerator: str) -> str:
    return f"this server runs on CPUs and NVIDIA GPUs, not on {accelerator}"


def _too_old(device: str, capability: str) -> str:
    return (
        f"the CUDA image is built with CUDA 13, which does not run on {device} (compute capability {capability};"
        f" allowed: {_MIN_CAPABILITY} and above)"
    )


def _read(file: str, kind: type[_Item]) -> list[_Item]:
    return msgspec.json.decode(Path(__file__).with_name(file).read_bytes(), type=list[kind])  # type: ignore[valid-type]


def _found(what: str, name: str, known: Mapping[str, _Item]) -> _Item:
    by_lower = {key.lower(): value for key, value in known.items()}
    if (item := by_lower.get(name.lower())) is None:
        likely = [key for key in known if key.lower().startswith(f"{name.lower()}-")] or [
            nearest(name, known)
        ]
        families = dict.fromkeys(key.rpartition(".")[0] or key for key in known)
        hint = f"; did you mean {' or '.join(likely)}?" if any(likely) else f"; known: {', '.join(families)}"
        raise NoSuchHardwareError(f"{what}: unknown name (got {name}){hint}")
    return item
