"""GGUF files as models. A model folder in the cache describes each of them; weights stay in the GGUF files."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from container.models.conversion import ConversionFailed, convert
from container.models.errors import ModelNotAvailable
from container.models.files.choice import short_list
from container.models.gguf_names import SUFFIX, is_first, parts_of
from container.models.publish import make_folder
from container.progress import ProgressView

_VERSION = "7"
"""Version of the description. A new version does not use old results."""
_NEEDED_BYTES = 128 << 20


def first_files(folder: Path) -> list[Path]:
    """Return the GGUF files below a folder; of a split model, only the first file."""
    return [path for path in sorted(folder.rglob(f"*{SUFFIX}")) if is_first(path.name)]


def locate_description(file: Path, cache: Path) -> Path | None:
    """Return the folder that describes the model with the first file `file`; None if it does not exist."""
    folder = _folder(_absolute(file), cache)
    return folder if folder is not None and folder.is_dir() else None


def make_description(file: Path, cache: Path, view: ProgressView) -> Path:
    """Return the folder that describes a model, created if needed. Raises: ModelNotAvailable."""
    file = _absolute(file)
    target = _folder(file, cache)
    if target is None:
        missing = [name for name in parts_of(file.name) if not file.with_name(name).is_file()]
        raise ModelNotAvailable(f"{file.parent} is incomplete: missing {short_list(missing)}")
    what = f"preparing {file}"
    return make_folder(target, what, _NEEDED_BYTES, view, lambda part: _describe(file, part), " (cached)")


def _absolute(file: Path) -> Path:
    """Return the absolute path of a file under its own name, which may be a link, as in the Hugging Face cache."""
    return file.parent.resolve() / file.name


def _folder(file: Path, cache: Path) -> Path | None:
    """Return the description's folder, named by a hash of all that it depends on; None if a file is missing."""
    parts = [_VERSION, importlib.metadata.version("transformers"), str(file)]
    files = [file.with_name(name) for name in parts_of(file.name)]
    if not all(path.is_file() for path in files):
        return None
    beside = [*sorted(file.parent.glob("*.json")), *sorted(file.parent.glob("*.jinja"))]
    for path in (*files, *filter(Path.is_file, beside)):
        stat = path.stat()
        parts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return cache / "gguf" / f"{file.stem}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _describe(file: Path, part: Path) -> None:
    """Write the description in a child process. Raises: ModelNotAvailable."""
    try:
        convert("container.models.gguf_describe", file, part)
    except ConversionFailed as error:
        raise ModelNotAvailable(f"{file} cannot be served: {error}") from error
