"""Hardware that a configuration is checked for: this machine, a cloud instance, or a number of devices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from container.explain import hardware
from container.explain.hardware import Device, Instance, NoSuchHardwareError
from container.machine import Machine, describe

_CPU_CORES = 2
"""Cores of the catalog's CPU, on which its figures were measured."""


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """A machine and its figures in the hardware catalog."""

    machine: Machine
    """Machine for which `resolve` resolves the configuration."""
    description: str
    """One-line description."""
    device: Device | None
    """Accelerator; None if there is none or it is unknown."""
    instance: Instance | None = None
    named: bool = False
    """Whether the user named the hardware; False for this machine."""

    @property
    def device_bytes(self) -> int | None:
        """Memory of each GPU, or of all ranks on a CPU; None if unknown."""
        if not self.machine.gpu_count:
            return self.machine.memory_available_bytes
        return self.device.memory_bytes if self.device else None

    def divided(self, copies: int) -> ServingTarget:
        """Return the target with one copy's share of main memory. GPUs are not shared."""
        memory = self.machine.memory_available_bytes // copies
        return replace(self, machine=replace(self.machine, memory_available_bytes=memory))


def this_machine(machine: Machine) -> ServingTarget:
    """Return this machine, with the catalog's device that matches the name of its GPUs."""
    words = set(re.split(r"[^A-Za-z0-9]+", machine.gpu_names[0])) if machine.gpu_names else set()
    known = [
        device
        for device in hardware.devices().values()
        if all(part in words for part in device.name.split("-"))
    ]
    longest = max(known, key=lambda device: len(device.name), default=None)
    return ServingTarget(machine, describe(machine), longest)


def instance_target(name: str) -> ServingTarget:
    """Return the instance as a target. Raises NoSuchHardwareError."""
    instance = hardware.instance(name)
    if not instance.vcpus:
        raise NoSuchHardwareError(
            f"instance {name}: its cores and memory are not known; allowed: newer types"
        )
    device = hardware.device(instance.device)
    host = f"{instance.vcpus} vCPUs, {instance.memory_bytes / 1024**3:.0f} GiB"
    machine = Machine(
        cpu_count=instance.vcpus, memory_available_bytes=instance.memory_bytes, name=instance.name
    )
    if device.name == hardware.CPU:
        # Every x86-64 instance has AVX2.
        return ServingTarget(replace(machine, cpu_kernels="avx2"), host, None, instance, named=True)
    gpus = replace(machine, gpu_count=instance.count, gpu_names=(device.name,) * instance.count)
    return ServingTarget(gpus, f"{_devices(device, instance.count)}, {host}", device, instance, named=True)


def device_target(name: str, count: int) -> ServingTarget:
    """Return `count` devices as a target. Raises NoSuchHardwareError."""
    device = hardware.device(name)
    accelerated = device.name != hardware.CPU
    machine = Machine(
        cpu_count=_CPU_CORES * count,
        memory_available_bytes=device.memory_bytes * count,
        gpu_count=count if accelerated else 0,
        gpu_names=(device.name,) * count if accelerated else (),
        cpu_kernels="" if accelerated else "amx",
        name=f"{count} x {device.name}",
    )
    return ServingTarget(machine, _devices(device, count), device if accelerated else None, named=True)


def _devices(device: Device, count: int) -> str:
    return f"{count} x {device.name} with {device.memory_bytes / 1e9:.3g} GB each"
