"""The packages of a handler's requirements.txt: installed once, into a virtual environment of their own.

It sees the server's packages, which stay as they are: pip adds what is missing or of another version.
"""

from __future__ import annotations

import hashlib
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from container.explain.resolve import CannotServe
from container.models.publish import locked
from container.progress import ProgressView
from lmi_server.config import UserHandler

_COMPLETE = "complete"
_MAX_ERROR = 600


def interpreter(handler: UserHandler, cache: Path, environ: Mapping[str, str], view: ProgressView) -> str:
    """The Python of a handler's workers: the server's own, or that of an environment with the handler's packages.

    environ: environment of pip. Raises CannotServe.
    """
    if not handler.requirements:
        return sys.executable
    requirements = Path(handler.requirements)
    wheels = requirements.parent / "requirements"
    folder = cache / "handlers" / _key(requirements, wheels)
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / f".{folder.name}.lock", "installing packages", view):
            if not (folder / _COMPLETE).is_file():
                view.start(f"installing the packages of {requirements}")
                shutil.rmtree(folder, ignore_errors=True)
                _create(folder)
                _install(python, requirements, wheels, environ)
                (folder / _COMPLETE).touch()
    except OSError as error:
        raise CannotServe(f"{requirements}: cannot be installed into the cache {cache}: {error}") from error
    finally:
        view.finish()
    return str(python)


def _key(requirements: Path, wheels: Path) -> str:
    """A hash of what an installation depends on."""
    digest = hashlib.sha256(f"{sys.version} {sys.prefix}\0".encode() + requirements.read_bytes())
    for wheel in sorted(wheels.glob("*")):
        status = wheel.stat()
        digest.update(f"\0{wheel.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _create(folder: Path) -> None:
    """Create an environment that sees the packages of this one after its own."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "server.pth").write_text("".join(lines), encoding="utf-8")


def _install(python: Path, requirements: Path, wheels: Path, environ: Mapping[str, str]) -> None:
    """Raises CannotServe."""
    command = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--requirement", str(requirements)]
    if wheels.is_dir():
        command += ["--find-links", str(wheels)]
    if environ.get("DJL_OFFLINE", "").lower() == "true":
        command.append("--no-index")
    done = subprocess.run(
        command, cwd=requirements.parent, env=dict(environ), capture_output=True, check=False
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        raise CannotServe(f"{requirements}: its packages cannot be installed: {text[-_MAX_ERROR:]}")
