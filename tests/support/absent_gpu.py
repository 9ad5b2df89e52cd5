"""A GPU that is not here, for Triton to compile for."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget


class AbsentGpu:
    """A driver that only says what the GPU is."""

    def __init__(self, capability: int = 90, device: int = 0) -> None:
        """device: Triton keeps what it compiled by this number."""
        self._target = GPUTarget("cuda", capability, 32)
        self._device = device

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int) -> int:
        return 0
