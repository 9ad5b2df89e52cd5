"""The copies of remote models in the cache.

models/<slug>-<digest>/                  a published copy: exactly the model's files
models/.remote/<slug>-<digest>.json      its remote and its files with their sizes, written before the copy appears;
                                         locked (shared) by servers that use the copy
models/.remote/<slug>-<name's hash>.*    files of one remote: `json` (last published copy), `lock`, `<digest>.part`
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.models.errors import ModelNotAvailable
from container.models.files.remote import RemoteFile, Selection, Snapshot
from container.models.publish import replace_text
from engines.models.gguf_index import read_index
from lmi_server.text import json_file

_MAX_SLUG = 80


def _slug(name: str) -> str:
    """Return a remote's name as a readable part of a file name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name)[:_MAX_SLUG].strip("-.") or "model"


def folders(cache: Path) -> tuple[Path, Path]:
    """Return the folder of copies and the folder of their metadata."""
    models = cache / "models"
    return models, models / ".remote"


def key(name: str) -> str:
    """Return the prefix of the names of a remote's metadata files."""
    return f"{_slug(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def copy_name(name: str, selection: Selection) -> str:
    """Return the name of a remote's copies. A partial copy has another name, so that it is not used as a whole one."""
    if selection.gguf:
        name = f"{name} ({selection.gguf})"
    if selection.everything:
        return f"{name} (all files)"
    if selection.streamed:
        return f"{name} (headers of weights)"
    return name if selection.with_weights else f"{name} (without weights)"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that this program wrote; empty if it cannot be read."""
    try:
        return json_file.read_json(path)
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of one snapshot; it may not exist yet."""

    cache: Path
    snapshot: Snapshot

    @property
    def _id(self) -> str:
        return f"{_slug(self.snapshot.name)}-{self.snapshot.digest}"

    @property
    def folder(self) -> Path:
        """The folder of the published copy."""
        return folders(self.cache)[0] / self._id

    @property
    def lock(self) -> Path:
        """Lock file of all copies of this remote."""
        return folders(self.cache)[1] / f"{key(self.snapshot.name)}.lock"

    @property
    def part(self) -> Path:
        """The folder in which the copy is assembled."""
        return folders(self.cache)[1] / f"{key(self.snapshot.name)}.{self.snapshot.digest}.part"

    @property
    def finished(self) -> Path:
        """The folder of finished files: the published copy if it exists, else the part folder."""
        return self.folder if self.folder.exists() else self.part

    def has(self, file: RemoteFile) -> bool:
        """Return whether a file is finished, judged by its size."""
        return _size(self.finished / file.path) == file.size

    def other_parts(self) -> list[Path]:
        """Return the folders that killed fetches of other snapshots of this remote left behind."""
        found = self.part.parent.glob(f"{key(self.snapshot.name)}.*.part")
        return [path for path in found if path != self.part]

    def is_complete(self) -> bool:
        return is_complete(self.cache, self._id)

    def write_list(self, files: tuple[RemoteFile, ...]) -> None:
        """Write the list of published files, which is used later to detect missing files."""
        content = {"name": self.snapshot.name, "files": {file.path: file.size for file in files}}
        path = folders(self.cache)[1] / f"{self._id}.json"
        if read_json(path) != content:  # an unchanged file keeps its locks
            replace_text(path, json.dumps(content))

    def record_as_latest(self) -> None:
        """Record this copy as the last published copy of its remote. The caller holds the lock."""
        index = folders(self.cache)[1] / f"{key(self.snapshot.name)}.json"
        replace_text(index, json.dumps({"name": self.snapshot.name, "copy": self._id}))


def is_complete(cache: Path, copy: str) -> bool:
    """Return whether the copy exists with all its files."""
    models, aside = folders(cache)
    files = read_json(aside / f"{copy}.json").get("files")
    if not isinstance(files, dict) or not files:
        return False
    return all(_size(models / copy / path) == size for path, size in files.items())


def _size(path: Path) -> int:
    """Return the size of a file in bytes; -1 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def last_published(name: str, cache: Path) -> Path | None:
    """Return the last published copy of the remote `name` if it is complete; else None."""
    models, aside = folders(cache)
    index = read_json(aside / f"{key(name)}.json")
    copy = index.get("copy")
    if (
        index.get("name") != name
        or not isinstance(copy, str)
        or not re.fullmatch(r"\w[\w.-]*", copy, re.ASCII)
    ):
        return None
    return models / copy if is_complete(cache, copy) else None


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Protect a copy from `prune` while the block runs. Other folders are ignored.

    For a description of GGUF files, the copy that contains these files is protected.
    Raises: ModelNotAvailable: the folder has just been removed.
    """
    index = read_index(folder) if folder.is_dir() else None
    files = folder if index is None else Path(index.folder)
    with ExitStack() as stack:
        for copy in (files, *files.parents):
            with suppress(
                OSError
            ):  # not a copy, or a file system without locks, where `prune` removes nothing
                file = stack.enter_context((copy.parent / ".remote" / f"{copy.name}.json").open("rb"))
                fcntl.flock(file, fcntl.LOCK_SH)
        if not folder.is_dir():
            raise ModelNotAvailable(f"{folder} was removed by another process; try again")
        yield
