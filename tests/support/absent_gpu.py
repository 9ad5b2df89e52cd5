"""A GPU that is not present, as a compilation target for Triton."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget


class AbsentGpu:
    """A Triton driver that only reports the GPU."""

    def __init__(self, capability: int = 90, device: int = 0) -> None:
        """device: key of Triton's cache of compiled kernels."""
        self._target = GPUTarget("cuda", capability, 32)
        self._device = device

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int) -> int:
        return 0
