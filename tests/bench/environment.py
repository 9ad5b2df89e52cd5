"""Virtual environments of the peers. Each has its own folder and is created once per recipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contender import Unavailable

_THREADS = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS"})
_OUR_PYTHON = frozenset({"PYTHONPATH", "VIRTUAL_ENV"})
_TAIL_LINES = 8
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

Step = tuple[tuple[str, ...], ...]
"""Alternative argument lists for pip, tried in order until one succeeds."""


def torch_cpu(version: str) -> Step:
    """Install a CPU build from the local wheels of pip's configuration, else from PyTorch's own index. PyPI's build
    depends on several GB of CUDA libraries."""
    install = ("install", "--no-deps", f"torch=={version}+cpu")
    return (
        (*install, "--no-index"),
        (*install, "--index-url", os.environ.get("TORCH_CPU_INDEX", TORCH_INDEX)),
    )


def own_threads(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables that limit threads, so that each contender chooses its own number of threads."""
    return {name: value for name, value in environ.items() if name not in _THREADS}


def environ(**more: str) -> dict[str, str]:
    """Return the environment variables of a peer's processes."""
    kept = {name: value for name, value in own_threads(os.environ).items() if name not in _OUR_PYTHON}
    return {**kept, **more}


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment `folder/venv`."""

    folder: Path
    steps: tuple[Step, ...]

    @property
    def python(self) -> Path:
        return self.folder / "venv/bin/python"

    def make(self, say: Callable[[str], None]) -> Path:
        """Create the environment, unless it exists with the same steps. Returns its Python. Raises: Unavailable."""
        recipe = json.dumps([sys.version, self.steps])
        stamp = self.folder / "venv/recipe.json"
        if stamp.is_file() and stamp.read_text() == recipe:
            return self.python
        say(f"{self.folder.name}: installing into {self.folder / 'venv'}; this takes minutes")
        shutil.rmtree(self.folder / "venv", ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "install.log"
        log.write_text("")
        called([sys.executable, "-m", "venv", str(self.folder / "venv")], log)
        for step in self.steps:
            self._run_step(step, log)
        stamp.write_text(recipe)
        return self.python

    def _run_step(self, alternatives: Step, log: Path) -> None:
        for index, arguments in enumerate(alternatives):
            try:
                called([str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments], log)
            except Unavailable:
                if index == len(alternatives) - 1:
                    raise
            else:
                return


def called(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command and append its output to `log`. Raises: Unavailable, with the last lines of the log."""
    with log.open("a") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        try:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=env or environ(), check=False
            )
        except OSError as error:
            raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        raise Unavailable(f"`{' '.join(command)[:200]}` failed; {log} ends with\n  {tail}")


def make_folder_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `make` on the first call. An interrupted call starts over. Raises as `make` does."""
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        make(partial)
        partial.rename(folder)
    return folder
