"""`python -m tests.kernels.triton.compile_ahead [operation ...]`: compile every Triton kernel, as serving launches it,
for GPUs that this machine lacks, and report registers, shared memory and spills from Triton's own ptxas. The exit
status is 1 if a kernel spills or needs too much shared memory.

With `--calls N`, only N calls of each operation are compiled for each kind of GPU, and not all kinds.

The launchers are called with `meta` tensors of real models' shapes. Triton specializes the kernels for their arguments,
but compiles for the given target and runs nothing. For sm_86, the PTX for sm_80 is assembled again: Triton writes the
same PTX for both, which one variant of each operation confirms.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.driver import driver

from lmi_kernels import tuning
from tests.gpu.one_kernel import operations
from tests.kernels.references.check import Inputs, all_checks
from tests.support.absent_gpu import AbsentGpu
from tests.support.compile_only import compile_only

_SHARED_LIMITS = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that one block may have (CUDA C++ Programming Guide, compute capabilities)."""
_SM_90 = "sm_90"
_ASSEMBLED_FOR = {80: (80, 86), 86: (86,), 90: (90,)}
"""Compute capabilities that the PTX for each capability is assembled for."""


class Job(NamedTuple):
    """One operation for one kind of GPU."""

    operation: str
    capability: int
    tuned_for: str
    """Name of the table of launch parameters."""
    max_calls: int | None
    """Number of calls to compile with each dtype; None: all."""

    @property
    def all_variants(self) -> bool:
        """Whether to compile all variants. Otherwise one shows that the operation compiles with these parameters."""
        return self.capability == 80 or self.tuned_for == _SM_90

    @property
    def dtypes(self) -> dict[torch.dtype, int | None]:
        """Number of calls to compile with each dtype; None: all. One is enough for fp16, whose code differs from that
        for bf16 only in conversions."""
        if not self.all_variants:
            return {torch.bfloat16: 1}
        with_fp16 = self.tuned_for == _SM_90 and self.max_calls is None
        return {torch.bfloat16: self.max_calls} | ({torch.float16: 1} if with_fp16 else {})


@dataclass(frozen=True, slots=True)
class Variant:
    """One compiled kernel."""

    job: Job
    capability: int
    """Compute capability that it is assembled for."""
    kernel: str
    constants: str
    num_warps: int
    registers: int
    shared: int
    spilled: int
    """Bytes stored by spills."""
    code: str
    """Digest of its PTX without the name of the GPU."""

    @property
    def fault(self) -> str:
        """The limit that it violates, or an empty string."""
        limit = _SHARED_LIMITS[self.capability]
        if self.shared > limit:
            return f"{self.shared} bytes of shared memory, the limit is {limit}"
        return f"{self.spilled} bytes spilled" if self.spilled else ""


def compile_operation(job: Job) -> list[Variant]:
    """Compile the variants of an operation's kernels. Replaces Triton's driver, so no kernel can run afterwards."""
    launched: dict[str, tuple[Any, dict[str, Any]]] = {}

    def keep(kernel: Any, kwargs: dict[str, Any]) -> None:
        launched.setdefault(kernel.hash, (kernel, kwargs))

    device = 2 * job.capability + (job.tuned_for != tuning.DEFAULT)
    driver.set_active(AbsentGpu(job.capability, device))
    knobs.runtime.add_stages_inspection_hook = _end_with_ptx
    try:
        (check,) = (check for check in all_checks() if check.name == job.operation)
        with (
            knobs.compilation.scope(),
            compile_only((job.tuned_for, tuning.DEFAULT), 132, keep),
        ):
            # Line information contains paths, and Triton's cache may contain kernels of another checkout.
            knobs.compilation.disable_line_info = True
            for dtype, num_calls in job.dtypes.items():
                for inputs in _spread(list(check.production(dtype)), num_calls):
                    check.launch(**inputs)
    finally:
        knobs.runtime.add_stages_inspection_hook = None
    return [
        _variant(job, capability, kernel, kwargs)
        for capability in _ASSEMBLED_FOR[job.capability]
        for kernel, kwargs in launched.values()
    ]


def _spread(calls: list[Inputs], count: int | None) -> list[Inputs]:
    """Return `count` of the calls, at equal distances; None: all."""
    return calls if count is None else calls[:: max(1, -(-len(calls) // count))]


def _end_with_ptx(
    backend: Any = None, stages: dict[str, Any] | None = None, *more: Any
) -> tuple[str, str] | None:
    """Hook of Triton that skips assembly. Without arguments, it returns its key for Triton's cache."""
    if stages is None:
        return "ends with PTX", "'ends with PTX'"
    stages["cubin"] = lambda source, metadata: b""
    return None


def _variant(job: Job, capability: int, kernel: Any, kwargs: dict[str, Any]) -> Variant:
    report = _assemble(kernel, capability)
    constants = {name: value for name, value in kwargs.items() if name.isupper()}
    return Variant(
        job,
        capability,
        kernel.metadata.name,
        " ".join(f"{name}={value}" for name, value in constants.items()),
        kernel.metadata.num_warps,
        _number(r"Used (\d+) registers", report),
        kernel.metadata.shared,
        _number(r"(\d+) bytes spill stores", report),
        hashlib.sha256(_ptx(kernel, 0).encode()).hexdigest(),
    )


def _ptx(kernel: Any, capability: int) -> str:
    """Return the kernel's PTX with `capability` as its target."""
    return re.sub(r"(\.target sm_)\d+", rf"\g<1>{capability}", kernel.asm["ptx"])


def _assemble(kernel: Any, capability: int) -> str:
    """Return the report of ptxas, called as Triton calls it."""
    backend = make_backend(GPUTarget("cuda", capability, 32))
    with knobs.nvidia.scope(), redirect_stdout(io.StringIO()) as report:
        knobs.nvidia.dump_ptxas_log = True
        backend.make_cubin(_ptx(kernel, capability), {}, kernel.metadata, capability)
    return report.getvalue()


def _number(pattern: str, report: str) -> int:
    match = re.search(pattern, report)
    if match is None:
        raise ValueError(f"no {pattern!r} in the report of ptxas: {report}")
    return int(match[1])


def jobs(wanted: list[str], max_calls: int | None) -> Iterator[Job]:
    # The slowest are first, so that no process is still busy with one of them at the end.
    for name in [name for name in operations() if not wanted or name in wanted]:
        yield Job(name, 90, _SM_90, max_calls)
        # Few calls show most faults with the parameters for one GPU of each capability.
        capabilities = [each for each in _SHARED_LIMITS if max_calls is None or each != 90]
        yield from (Job(name, capability, tuning.DEFAULT, max_calls) for capability in capabilities)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", help="operations to compile (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--calls", type=int, help="calls of each operation to compile (default: all)")
    arguments = parser.parse_args()
    print(
        f"{'kernel':40} {'sm':>3} {'warps':>5} {'regs':>5} {'shared':>7} {'spill':>6}  tuned for, constants"
    )
    faults = count = 0
    codes: set[str] = set()
    # Forked processes have torch and Triton already loaded.
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for variants in pool.imap(
            compile_operation, jobs(arguments.operations, arguments.calls), chunksize=1
        ):
            for variant in variants:
                fault = variant.fault
                if variant.job.capability == 86 and variant.code not in codes:
                    fault = "PTX differs from that for sm_80, so the results of assembling that for sm_86 are invalid"
                codes.add(variant.code)
                print(
                    f"{variant.kernel:40} {variant.capability:3} {variant.num_warps:5} {variant.registers:5} "
                    f"{variant.shared:7} {variant.spilled:6}  {variant.job.tuned_for} {variant.constants} "
                    f"{'FAULT: ' + fault if fault else ''}",
                    flush=True,
                )
                count += 1
                faults += bool(fault)
    print(f"{count} kernels compiled, {faults} at fault")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
