"""The web process starts without the model's libraries, which take seconds and gigabytes, and has its data files."""

from __future__ import annotations

import subprocess
import sys
import tomllib
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


def test_an_installation_has_the_tables() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "lmi_server"
    installed = {path for pattern in settings["package-data"]["lmi_server"] for path in package.glob(pattern)}
    tables = {path for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert tables
    assert tables <= installed
