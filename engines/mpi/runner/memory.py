"""Memory of a rank, measured before the KV cache is created, so that it does not run out later."""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Callable
from pathlib import Path

import torch

from engines import host_memory
from engines.mpi.runner import budget

_GIB = 1024**3
_STATUS = Path("/proc/self/status")
MAX_OUTSIDE = 256 * 1024**2
"""Maximum bytes that the first CUDA graph may take outside of torch's allocator."""


def bytes_in_use(device: torch.device) -> int:
    """Return the bytes that this process holds on the device: in tensors on a GPU, otherwise resident."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    _trim()
    return host_memory.bytes_of(_STATUS, "VmRSS") or _largest_resident()


def measure_peak(device: torch.device, work: Callable[[], None]) -> int:
    """Return the bytes that `work` takes at its peak, beyond what was in use before.

    On a GPU: memory held by the allocator, which is more than its tensors fill. On a CPU: resident bytes. If the kernel
    cannot reset an earlier peak, that peak counts, so the result may be too large but not too small.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_reserved(device)
        empty_cache()
        return peak - before
    before = bytes_in_use(device)
    was_reset = _reset_peak()
    work()
    peak = host_memory.bytes_of(_STATUS, "VmHWM") if was_reset else _largest_resident()
    _trim()
    return max(0, peak - before)


def measure_held(device: torch.device, work: Callable[[], None], max_outside: int) -> int:
    """Return the bytes that a GPU has lost after `work`: memory held by torch's allocator, and memory that the
    driver and NCCL took without its knowledge.

    max_outside: maximum of the latter. Another process may start or end meanwhile, and its memory would count too.
    """

    def held_bytes() -> tuple[int, int]:
        torch.cuda.synchronize(device)
        empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return held, total - free - held

    before, others_before = held_bytes()
    work()
    after, others_after = held_bytes()
    return max(0, after - before) + min(max(0, others_after - others_before), max_outside)


def empty_cache() -> None:
    """Return unused memory to the GPU."""
    gc.collect()  # graphs and the functions that they call reference each other
    torch.cuda.empty_cache()


def gpu_cache_bytes(device: torch.device, utilization: float, activations: int) -> int:
    """Return the bytes that one GPU's KV cache may take: this process's share of the memory, after weights and the
    largest step, but at most what other processes leave."""
    free, total = torch.cuda.mem_get_info(device)
    reserved, weights = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    # The memory of other processes cannot be distinguished from this process's context.
    context = min(total - free - reserved, budget.CONTEXT_BYTES)
    share = budget.gpu_cache_bytes(total, utilization, context, weights, activations)
    # What other processes leave must also do for what the driver takes later.
    return min(share, free + reserved - MAX_OUTSIDE - weights - activations)


def free_bytes(device: torch.device) -> int:
    """Return the available bytes: of the GPU, or of the machine within the limits of this process's cgroups."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host_memory.available_bytes()


def require_fit(kv_cache: int, activations: int, weights: int, free: int, num_tokens: int) -> None:
    """Check that KV cache and largest step fit into the free memory.

    All arguments but `num_tokens` are bytes, over all ranks that share the memory. The weights are loaded already;
    `free` is available besides them.

    Raises:
        ValueError: KV cache and largest step together take more than `free`.
    """
    if kv_cache + activations <= free:
        return
    left = free - activations
    remedy = f"set option.kv_cache_gb to at most {_floor(left)}"
    if left < 0.01 * _GIB:
        remedy = "no memory is left for option.kv_cache_gb: lower option.max_num_batched_tokens"
    raise ValueError(
        f"option.kv_cache_gb={_gib(kv_cache)} does not fit: with a step of {num_tokens} tokens, which takes"
        f" {_gib(activations)} GiB, it needs {_gib(kv_cache + activations)} GiB in addition to the weights'"
        f" {_gib(weights)} GiB, and {_gib(free)} GiB are free; {remedy}"
    )


def shortage(capacity: int, longest: int, weights: int, activations: int, is_fixed: bool) -> str:
    """Describe a KV cache that is too small for the longest sequence, and what to change.

    capacity, longest: tokens; weights, activations: bytes of one rank; is_fixed: whether option.kv_cache_gb sets the
    size, and not the free memory of a GPU.
    """
    if not capacity and not is_fixed:
        return (
            f"no memory is left for the KV cache: the weights take {_gib(weights)} GiB and the largest step"
            f" {_gib(activations)} GiB; raise option.tensor_parallel_degree or option.gpu_memory_utilization,"
            " lower option.max_num_batched_tokens, or use a larger GPU"
        )
    size = "option.kv_cache_gb" if is_fixed else "option.gpu_memory_utilization"
    lower = "lower option.max_model_len, or " if capacity else ""
    return f"the KV cache holds {capacity} tokens, but option.max_model_len is {longest}; {lower}raise {size}"


def _gib(count: int) -> str:
    return f"{count / _GIB:.3g}"


def _floor(count: int) -> str:
    return f"{int(count * 100 / _GIB) / 100:.2f}"


def _largest_resident() -> int:
    """Return the peak resident bytes over the whole life of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reset_peak() -> bool:
    """Reset the kernel's peak of the resident set. Returns False if the kernel does not support it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return host_memory.bytes_of(_STATUS, "VmHWM") > 0


def _trim() -> None:
    """Return freed memory to the kernel, so that resident memory equals used memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
