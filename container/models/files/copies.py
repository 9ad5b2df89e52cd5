"""The copies of remote models in the cache: where each lies, and which of them belongs to which remote.

models/<slug>-<digest>/                  a published copy: exactly the model's files
models/.remote/<slug>-<digest>.json      its remote and its files with their sizes, written before the copy appears;
                                         locked (shared) by servers that use the copy
models/.remote/<slug>-<name's hash>.*    for one remote: `json` its copy published last, `lock`, `<digest>.part`
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.models.files.base import ModelNotAvailable
from container.models.files.remote import RemoteFile, Snapshot
from container.models.publish import replace_text

_MAX_JSON_BYTES = 4 << 20
_MAX_SLUG = 80


def _slug(name: str) -> str:
    """A remote's name as a readable part of a file name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name)[:_MAX_SLUG].strip("-.") or "model"


def folders(cache: Path) -> tuple[Path, Path]:
    """Where copies are, and where everything is that belongs to them."""
    models = cache / "models"
    return models, models / ".remote"


def key(name: str) -> str:
    """Beginning of the names of a remote's files."""
    return f"{_slug(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object; empty where there is none that can be read."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of one snapshot, there or not."""

    cache: Path
    snapshot: Snapshot

    @property
    def _id(self) -> str:
        return f"{_slug(self.snapshot.name)}-{self.snapshot.digest}"

    @property
    def folder(self) -> Path:
        """Where it is when it is published."""
        return folders(self.cache)[0] / self._id

    @property
    def lock(self) -> Path:
        """For all copies of this remote."""
        return folders(self.cache)[1] / f"{key(self.snapshot.name)}.lock"

    @property
    def part(self) -> Path:
        """Where it is made."""
        return folders(self.cache)[1] / f"{key(self.snapshot.name)}.{self.snapshot.digest}.part"

    def other_parts(self) -> list[Path]:
        """What killed fetches of other snapshots of this remote have left."""
        found = self.part.parent.glob(f"{key(self.snapshot.name)}.*.part")
        return [path for path in found if path != self.part]

    def is_complete(self) -> bool:
        return is_complete(self.cache, self._id)

    def write_list(self, files: tuple[RemoteFile, ...]) -> None:
        """Note what is going to be published, so that a file that goes missing later is noticed."""
        content = {"name": self.snapshot.name, "files": {file.path: file.size for file in files}}
        path = folders(self.cache)[1] / f"{self._id}.json"
        if read_json(path) != content:  # else the locks on it stay
            replace_text(path, json.dumps(content))

    def withdraw(self) -> None:
        """Take back a copy that lacks files: those that have their sizes go to where it is made, others are removed."""
        for file in self.snapshot.files:
            if _size(self.folder / file.path) == file.size:
                (self.folder / file.path).rename(self.part / file.path)
        shutil.rmtree(self.folder)

    def remember(self) -> None:
        """Make it the one that `last_published` finds for its remote. The caller holds the lock."""
        index = folders(self.cache)[1] / f"{key(self.snapshot.name)}.json"
        replace_text(index, json.dumps({"name": self.snapshot.name, "copy": self._id}))


def is_complete(cache: Path, copy: str) -> bool:
    """Whether the copy is there with all its files."""
    models, aside = folders(cache)
    files = read_json(aside / f"{copy}.json").get("files")
    if not isinstance(files, dict) or not files:
        return False
    return all(_size(models / copy / path) == size for path, size in files.items())


def _size(path: Path) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def last_published(name: str, cache: Path) -> Path | None:
    """The complete copy of the remote `name` that was published last."""
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
    """Keep a copy from being removed by `prune` while the block runs. Any other folder is left to itself.

    Raises: ModelNotAvailable: it was removed just now.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # no copy; or a file system without locks, on which `prune` removes nothing
            file = stack.enter_context((folder.parent / ".remote" / f"{folder.name}.json").open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH)
        if not folder.is_dir():
            raise ModelNotAvailable(f"{folder} was removed just now; start again")
        yield
