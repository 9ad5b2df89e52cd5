"""The packages of a handler's requirements.txt: installed once, into a virtual environment of their own.

It sees the server's packages, which stay as they are: pip adds what is missing or of another version.
"""

from __future__ import annotations

import hashlib
import os
import re
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
_WORD = re.compile(r"(?:^|[\s=])(?:-[rcef]|file://)?([^\s=\[;]+)")
"""A word of a requirements file that may be a path, without the option that it follows and the extras behind it."""
_MADE = re.compile(r"build|__pycache__|.+\.egg-info")
"""What installing a package leaves in its folder."""


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
    """A hash of what an installation depends on: the requirements, the local files that they name, and the wheels."""
    digest = hashlib.sha256(f"{sys.version} {sys.prefix}".encode())
    for path in (*_named(requirements), wheels):
        digest.update(f"\0{path.name}\0".encode())
        if _is_list(path):
            digest.update(path.read_bytes())
            continue
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            inner = file.relative_to(path)
            if file.is_file() and not any(map(_MADE.fullmatch, inner.parts)):
                status = file.stat()
                digest.update(f"\0{inner} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _named(requirements: Path) -> list[Path]:
    """The requirements, and the files and folders that they name, directly or in lists that they include."""
    found = [requirements.resolve()]
    for file in filter(_is_list, found):
        for word in _WORD.findall(file.read_text(encoding="utf-8", errors="replace")):
            # Included lists are relative to the file that names them, packages to the folder in which pip runs.
            for path in (file.parent / word, requirements.parent / word):
                # Unlike Path.exists, false for a name that is too long.
                if os.path.exists(path) and path.resolve() not in found:  # noqa: PTH110
                    found.append(path.resolve())
    return found


def _is_list(path: Path) -> bool:
    return path.suffix == ".txt" and path.is_file()


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
