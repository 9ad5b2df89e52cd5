"""Devices and instances, with the figures that predictions need. Data: devices.json and instances.json beside this."""

from __future__ import annotations

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
    """As published, in powers of ten where the source says GB; what a driver reports differs by some percent."""
    bandwidth: float
    """Bytes a second between the device and its memory."""
    flops: Mapping[str, float]
    """Operations a second of matrix products by number format: fp32, fp16, bf16, fp8, int8; what it lacks is absent."""
    link: float
    """Bytes a second, one way, from one device to the others of an instance."""
    source: str
    """Where the figures are published."""
    compute_capability: str = ""
    """Of NVIDIA's GPUs; empty: this server's GPU kernels do not run on it."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine that can be rented, such as ml.g5.48xlarge."""

    name: str
    device: str
    count: int
    """Number of its devices."""
    vcpus: int
    memory_bytes: int
    """Main memory."""
    disk_bytes: int
    """Local storage; 0 where there is none."""
    network: float
    """Sustained bytes a second to storage such as S3. Capped at 100 Gbit/s, assumed for one network card."""
    source: str


CPU = "CPU"
"""The device that is no accelerator."""
_LEAST_CAPABILITY = 7.5
"""Of CUDA 13."""


class NoSuchHardwareError(ValueError):
    """No device or instance has this name. The message says which name is nearest."""


def device(name: str) -> Device:
    """Raises: NoSuchHardwareError."""
    return _found("device", name, devices())


def instance(name: str) -> Instance:
    """Raises: NoSuchHardwareError."""
    return _found("instance", name, instances())


@cache
def devices() -> Mapping[str, Device]:
    return {found.name: found for found in _read("devices.json", Device)}


@cache
def instances() -> Mapping[str, Instance]:
    return {found.name: found for found in _read("instances.json", Instance)}


def image_obstacle(device: Device) -> str:
    """Why this server's images do not run on a device; empty where one does."""
    capability = device.compute_capability
    if not capability:
        return "" if device.name == CPU else f"this server runs on CPUs and NVIDIA GPUs, not on {device.name}"
    if float(capability) >= _LEAST_CAPABILITY:
        return ""
    return (
        f"the CUDA image is made with CUDA 13, which does not run on {device.name} (compute capability {capability};"
        f" allowed: {_LEAST_CAPABILITY} and above)"
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
        raise NoSuchHardwareError(f"{what}: there is none of this name (got {name}){hint}")
    return item
