"""Instruction sets of the native kernels that this processor has, by the kernel's list of its flags."""

from __future__ import annotations

from pathlib import Path

_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_FLAGS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": _AVX512,
    "avx512_vnni": _AVX512 | {"avx512_vnni"},
    "amx": _AVX512 | {"avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"},
}


def instruction_sets() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set[str]())
    return [name for name, needed in _FLAGS.items() if needed <= flags]
