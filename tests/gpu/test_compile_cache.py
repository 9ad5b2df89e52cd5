"""Kernels unpacked from another machine's cache are not compiled again, although archives omit some files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.compile_cache import CompileCache
from tests.support.paths import REPO_ROOT, child_environment

_COMPILE = """
import torch
from triton import knobs
from triton.runtime.driver import driver
from tests.kernels.references.check import all_checks
from tests.support.absent_gpu import AbsentGpu
from tests.support.compile_only import compile_only
hits = []
knobs.compilation.listener = lambda **named: hits.append(named["cache_hit"])
driver.set_active(AbsentGpu(90))
(check,) = (check for check in all_checks() if check.name == "sum_choices")
with compile_only(("default",), 132, lambda kernel, kwargs: kernel.asm["cubin"]):
    parts = torch.empty(8, 64, dtype=torch.bfloat16, device="meta")
    check.launch(parts=parts, top_k=2)
print(hits)
"""


def _compile(cache: Path) -> str:
    environment = {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": f"{REPO_ROOT}:{REPO_ROOT / 'kernels'}"}
    process = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        cwd=REPO_ROOT,
        env=child_environment(environment | {"TRITON_INTERPRET": "0"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.long
def test_unpacked_kernels_are_not_compiled_again(tmp_path: Path) -> None:
    here, there, out = CompileCache(tmp_path / "here"), CompileCache(tmp_path / "there"), tmp_path / "out"
    out.mkdir()
    assert _compile(here.folder) == "[False]"
    (archive,) = here.pack(out)
    assert archive.stat().st_size < 100_000
    # The kernels no longer exist where they were compiled.
    here.folder.rename(tmp_path / "elsewhere")
    assert there.unpack(archive) == 1
    assert _compile(there.folder) == "[True]"
