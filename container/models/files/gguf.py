"""The scheme of GGUF files on this machine: described once in the cache by a model folder; weights stay in the file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

from container.models.errors import ModelNotAvailable
from container.models.files.base import Scheme
from container.models.publish import make_folder
from container.progress import ProgressView
from engines.models.gguf_index import read_index
from lmi_server.config import ModelSource

_SUFFIX = ".gguf"
_VERSION = "1"
"""Version of the description; a new one does not use old results."""
_NEEDED_BYTES = 128 << 20
_SECONDS = 300.0


def problem(folder: Path) -> str | None:
    """Why the GGUF file of a model folder cannot be read, in one sentence; None if it can."""
    index = read_index(folder)
    return index.problem or None if index is not None else None


def _files(source: ModelSource) -> list[Path]:
    """The file that `option.model_id` names, or those of the folder that it names."""
    if "://" in (source.model_id or ""):
        return []
    path = source.local_path
    if path.is_file():
        return [path] if path.suffix == _SUFFIX else []
    return [] if any(path.glob("*.safetensors")) else sorted(path.glob(f"*{_SUFFIX}"))


def _folder(file: Path, cache: Path) -> Path:
    """The description in the cache, by all that it depends on."""
    parts = [_VERSION, importlib.metadata.version("transformers"), str(file.resolve())]
    for path in (file, *sorted(file.parent.glob("*.json")), *sorted(file.parent.glob("*.jinja"))):
        stat = path.stat()
        parts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return cache / "gguf" / f"{file.stem}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


class GgufModels(Scheme):
    """A GGUF file, or a folder with one and no safetensors."""

    def owns(self, source: ModelSource) -> bool:
        return bool(_files(source))

    def refusal(self, source: ModelSource) -> str | None:
        files = _files(source)
        if len(files) < 2:
            return None
        names = ", ".join(file.name for file in files)
        return f"{files[0].parent} has several GGUF files; set option.model_id to the path of one of them: {names}"

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        if self.refusal(source):
            return None
        folder = _folder(_files(source)[0], cache)
        return folder if folder.is_dir() else None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        if sentence := self.refusal(source):
            raise ModelNotAvailable(sentence)
        file = _files(source)[0].resolve()
        target = _folder(file, cache)
        try:
            return make_folder(
                target,
                f"describing {file}",
                _NEEDED_BYTES,
                view,
                lambda part: _describe(file, part),
                ", once",
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise ModelNotAvailable(
                f"cannot write the cache {cache} ({why}); set LMI_CACHE_DIR to another folder"
            ) from error


def _describe(file: Path, part: Path) -> None:
    """Run the description in a child process. Raises: ModelNotAvailable."""
    command = [sys.executable, "-m", "container.models.gguf_describe", str(file), str(part)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise ModelNotAvailable(f"{file} could not be described in {_SECONDS:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ModelNotAvailable(f"{file} cannot be served: {lines[-1]}")
