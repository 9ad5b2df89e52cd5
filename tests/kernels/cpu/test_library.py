"""`python -m lmi_kernels.cpu`, which `make install` runs at its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lmi_kernels
from lmi_kernels.cpu import library
from tests.support.paths import child_environment

_ALLOWED = "avx2, avx512, avx512_vnni, amx, torch"
_REFUSED = "torch serves on a CPU, more slowly; option.quantize and 8-bit and 16-bit KV caches are refused"


def _report(wanted: str, folder: Path) -> list[str]:
    """Run the program of the package in `folder`. Return its lines."""
    done = subprocess.run(
        [sys.executable, "-m", "lmi_kernels.cpu"],
        capture_output=True,
        text=True,
        env=child_environment({"PYTHONPATH": str(folder), library.CHOICE: wanted}),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        ("torch", ["CPU kernels: torch (LMI_CPU_KERNELS=torch)", _REFUSED]),
        ("sse", [f"CPU kernels: LMI_CPU_KERNELS: not supported (got 'sse'); allowed: {_ALLOWED}"]),
    ],
)
def test_the_program_says_what_the_variable_causes(wanted: str, lines: list[str]) -> None:
    assert _report(wanted, _package().parent) == lines


def test_the_program_says_how_missing_kernels_are_built(tmp_path: Path) -> None:
    shutil.copytree(_package(), tmp_path / "lmi_kernels", ignore=shutil.ignore_patterns("*.so"))
    lines = [
        "CPU kernels: torch; native kernels are not built (install g++ and run `make -B install`)",
        _REFUSED,
    ]
    assert _report("", tmp_path) == lines


def test_a_library_that_was_built_from_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = library.library_path()
    if path is None:
        pytest.skip("native kernels are not built here")
    monkeypatch.setattr(library.ctypes, "sizeof", lambda struct: 8)
    with pytest.raises(ValueError, match=r"was built from other sources; run `make -B install`"):
        library.Library(path)


def _package() -> Path:
    return Path(lmi_kernels.__file__).parent
