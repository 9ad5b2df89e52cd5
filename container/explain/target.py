"""What a configuration is checked for: this machine, an instance that can be rented, or some devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from container.explain import hardware
from container.explain.hardware import Device, Instance
from container.machine import Machine, describe

_CPU_CORES = 2
"""Of the device CPU, as measured."""


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """A machine, and the catalogue's figures of it."""

    machine: Machine
    """What `resolve` decides for."""
    description: str
    """One line."""
    device: Device | None
    """Its accelerator; None without one, or where it is unknown."""
    instance: Instance | None = None
    named: bool = False
    """Whether the user named it: then it is not this machine."""

    @property
    def device_bytes(self) -> int | None:
        """Memory of each GPU, or of all ranks on a CPU; None where it is unknown."""
        if not self.machine.gpu_count:
            return self.machine.memory_available_bytes
        return self.device.memory_bytes if self.device else None

    def divided(self, copies: int) -> ServingTarget:
        """What each of several copies of the model has of the memory; GPUs are not shared."""
        memory = self.machine.memory_available_bytes // copies
        return replace(self, machine=replace(self.machine, memory_available_bytes=memory))


def this_machine(machine: Machine) -> ServingTarget:
    """The machine that runs this, with the catalogue's device of its GPUs' name."""
    known = [
        device
        for device in hardware.devices().values()
        if machine.gpu_names and all(part in machine.gpu_names[0] for part in device.name.split("-"))
    ]
    longest = max(known, key=lambda device: len(device.name), default=None)
    return ServingTarget(machine, describe(machine), longest)


def instance_target(name: str) -> ServingTarget:
    """An instance. Raises: NoSuchHardwareError."""
    instance = hardware.instance(name)
    device = hardware.device(instance.device)
    host = f"{instance.vcpus} vCPUs, {instance.memory_bytes / 1024**3:.0f} GiB"
    machine = Machine(
        cpu_count=instance.vcpus,
        memory_available_bytes=instance.memory_bytes,
        gpu_count=instance.count,
        gpu_names=(device.name,) * instance.count,
        name=instance.name,
    )
    return ServingTarget(machine, f"{_devices(device, instance.count)}, {host}", device, instance, named=True)


def device_target(name: str, count: int) -> ServingTarget:
    """So many devices of a kind. Raises: NoSuchHardwareError."""
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
