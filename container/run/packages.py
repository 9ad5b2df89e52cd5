"""Install the packages of a handler's requirements.txt, once, into a separate virtual environment.

The environment sees the server's packages, which are not changed: pip adds packages that are missing or have another
version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import site
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from container.explain.resolve import CannotServe
from container.models.publish import locked
from container.progress import ProgressView
from container.run.own_session import run_in_own_session
from container.run.processes import bound
from lmi_server.config import UserHandler

_COMPLETE = "complete"
_MAX_ERROR = 600
_COMMENT = re.compile(r"(?<!\S)#.*")
_WORD = re.compile(r"(?:^|[\s=])(?:-[rcef]|file://)?([^\s=\[;]+)")
"""A word of a requirements file that may be a path, without the option before it and the extras after it."""
_BUILD_OUTPUT = re.compile(r"build|__pycache__|.+\.egg-info")
"""Names of files and folders that installing a package leaves in its source folder."""
_PROJECT_FILES = ("pyproject.toml", "setup.py")


def interpreter(handler: UserHandler, cache: Path, environ: Mapping[str, str], view: ProgressView) -> str:
    """Return the Python of a handler's workers: the server's own, or that of an environment with its packages.

    environ: environment of pip. Raises CannotServe.
    """
    if not handler.requirements:
        return sys.executable
    requirements = Path(handler.requirements)
    wheels = requirements.parent / "requirements"
    try:
        folder = cache / "handlers" / _key(requirements, wheels)
        python = folder / "bin" / "python"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / f".{folder.name}.lock", "installing packages", view):
            if not (folder / _COMPLETE).is_file():
                view.start(f"installing the packages of {requirements}")
                shutil.rmtree(folder, ignore_errors=True)
                _create(folder)
                _install(python, requirements, wheels, environ)
                (folder / _COMPLETE).touch()
    except OSError as error:
        raise CannotServe(
            f"cannot install the packages of {requirements} into the cache {cache}: {error}"
        ) from error
    finally:
        view.finish()
    return str(python)


def _key(requirements: Path, wheels: Path) -> str:
    """Return a hash of everything an installation depends on: requirements, local files that they name, and wheels."""
    digest = hashlib.sha256(f"{sys.version} {sys.prefix}".encode())
    for path in (*_local_files(requirements), wheels):
        digest.update(f"\0{path.name}\0".encode())
        if _is_list(path):
            digest.update(path.read_bytes())
            continue
        for file in [path] if path.is_file() else _source_files(path):
            with contextlib.suppress(FileNotFoundError):  # it may have been removed meanwhile
                status = file.stat()
                digest.update(f"\0{file.relative_to(path)} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _source_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted, without build output."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):  # unlike Path.rglob, skips folders that vanish meanwhile
        folders[:] = [name for name in folders if not _BUILD_OUTPUT.fullmatch(name)]
        found += [Path(parent, name) for name in names if not _BUILD_OUTPUT.fullmatch(name)]
    return sorted(file for file in found if file.is_file())


def _local_files(requirements: Path) -> list[Path]:
    """Return the requirements file, and the files and folders it names, directly or in lists that it includes.

    Folders around the requirements file are left out unless they are Python projects: everything below them would
    count.
    """
    found = [requirements.resolve()]
    around = requirements.parent.resolve().parents
    for file in found:  # grows meanwhile
        if not _is_list(file):
            continue
        text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
        for word in _WORD.findall(text):
            # Included lists are relative to the file that names them, packages to the folder in which pip runs.
            for path in (file.parent / word, requirements.parent / word):
                # Unlike Path.exists, false for a name that is too long.
                if not os.path.exists(path) or (path := path.resolve()) in found:  # noqa: PTH110
                    continue
                if path not in around or any((path / name).is_file() for name in _PROJECT_FILES):
                    found.append(path)
    return found


def _is_list(path: Path) -> bool:
    return path.suffix == ".txt" and path.is_file()


def _create(folder: Path) -> None:
    """Create a virtual environment that also sees this environment's packages, after its own."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "server.pth").write_text("".join(lines), encoding="utf-8")


def _install(python: Path, requirements: Path, wheels: Path, environ: Mapping[str, str]) -> None:
    """Install the requirements with pip. Raises CannotServe."""
    # The kernel kills pip with this process. With its option --python, pip would install in a further process.
    command = [str(python), "-P", "-m", "pip", "install", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--requirement", str(requirements)]
    if wheels.is_dir():
        command += ["--find-links", str(wheels)]
    if environ.get("DJL_OFFLINE", "").lower() == "true":
        command.append("--no-index")
    done = run_in_own_session(bound(command), env=environ, cwd=requirements.parent)
    if done.returncode != 0:
        raise CannotServe(
            f"cannot install the packages of {requirements}: {done.stdout.strip()[-_MAX_ERROR:]}"
        )
