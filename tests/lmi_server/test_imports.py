"""The web process starts without the model's libraries: they take seconds and gigabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_web_process_imports_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, lmi_server.wsgi\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} "
        "& {'torch', 'transformers', 'numpy', 'triton', 'mpi4py', 'lmi_kernels'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
    )
    assert done.stdout.strip() == "[]", done.stdout
