"""Remove copies of earlier versions, incomplete copies and unfinished fetches from the cache.

Removes only files made by `copies.py`, under the lock that fetches of the same remote take. Keeps copies that a server
uses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from container.models.files.copies import folders, is_complete, key, read_json
from container.models.publish import lock_if_free, remove_folder, try_lock
from container.progress import ProgressView

_LIST = re.compile(r"(.+-[0-9a-f]{16})\.json")
_PART = re.compile(r"(.+-[0-9a-f]{8})\.[0-9a-f]{16}\.part")


@dataclass(slots=True)
class _RemoteFiles:
    """Copies and unfinished fetches of one remote in the cache."""

    copies: list[str] = field(default_factory=list)
    parts: list[Path] = field(default_factory=list)


def prune(cache: Path, view: ProgressView, name: str | None = None) -> int:
    """Prune the remote `name`, or all, and report each removal. Returns the bytes freed. Raises OSError."""
    remotes = _find_remotes(cache)
    keys = sorted(remotes) if name is None else [key(name)]
    return sum(_prune_remote(cache, view, one, remotes[one]) for one in keys if one in remotes)


def _find_remotes(cache: Path) -> dict[str, _RemoteFiles]:
    """Return the copies and unfinished fetches of each remote, by the remote's key."""
    found: defaultdict[str, _RemoteFiles] = defaultdict(_RemoteFiles)
    for path in folders(cache)[1].glob("*"):
        if (listed := _LIST.fullmatch(path.name)) and isinstance(name := read_json(path).get("name"), str):
            found[key(name)].copies.append(listed[1])
        elif part := _PART.fullmatch(path.name):
            found[part[1]].parts.append(path)
    return found


def _prune_remote(cache: Path, view: ProgressView, remote: str, files: _RemoteFiles) -> int:
    aside = folders(cache)[1]
    freed = 0
    with lock_if_free(aside / f"{remote}.lock") as acquired:
        if not acquired:
            view.say(f"kept the files of {remote}: another process is downloading it")
            return 0
        last = read_json(aside / f"{remote}.json").get("copy")
        for copy in sorted(files.copies):
            complete = is_complete(cache, copy)
            if copy != last or not complete:
                freed += _remove_copy(cache, view, copy, "an old version" if complete else "incomplete")
        for part in files.parts:
            if part.exists():  # the fetch may have finished since
                freed += remove_folder(part, "an unfinished download", view)
    return freed


def _remove_copy(cache: Path, view: ProgressView, copy: str, why: str) -> int:
    models, aside = folders(cache)
    with (aside / f"{copy}.json").open("r+b") as listed:
        if not try_lock(listed):
            view.say(f"kept {models / copy}: it is in use by a server")
            return 0
        freed = remove_folder(models / copy, why, view) if (models / copy).exists() else 0
        (aside / f"{copy}.json").unlink()  # last, so that a killed removal can be continued
    return freed
