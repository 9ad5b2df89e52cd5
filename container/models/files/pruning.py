"""Remove what no start needs from the cache: copies of earlier versions, broken copies, and unfinished fetches.

Only what `copies.py` made is removed, under the lock that every fetch of the same remote takes, and no copy that a
server uses.
"""

from __future__ import annotations

import fcntl
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from container.models.files.copies import folders, is_complete, key, read_json
from container.models.publish import lock_if_free, remove_folder
from container.progress import ProgressView

_LIST = re.compile(r"(.+-[0-9a-f]{16})\.json")
_PART = re.compile(r"(.+-[0-9a-f]{8})\.[0-9a-f]{16}\.part")


@dataclass(slots=True)
class _Belongings:
    """What the cache has of one remote."""

    copies: list[str] = field(default_factory=list)
    parts: list[Path] = field(default_factory=list)


def prune(cache: Path, view: ProgressView, name: str | None = None) -> int:
    """Remove what is left of the remote called `name`, or of all; say what. Returns the bytes that became free.

    Raises: OSError.
    """
    remotes = _found(cache)
    keys = sorted(remotes) if name is None else [key(name)]
    return sum(_prune_remote(cache, view, one, remotes[one]) for one in keys if one in remotes)


def _found(cache: Path) -> dict[str, _Belongings]:
    """By the remotes' keys."""
    found: defaultdict[str, _Belongings] = defaultdict(_Belongings)
    for path in folders(cache)[1].glob("*"):
        if (listed := _LIST.fullmatch(path.name)) and isinstance(name := read_json(path).get("name"), str):
            found[key(name)].copies.append(listed[1])
        elif part := _PART.fullmatch(path.name):
            found[part[1]].parts.append(path)
    return found


def _prune_remote(cache: Path, view: ProgressView, remote: str, left: _Belongings) -> int:
    aside = folders(cache)[1]
    freed = 0
    with lock_if_free(aside / f"{remote}.lock") as mine:
        if not mine:
            view.say(f"kept what is there of {remote}: another process is fetching it")
            return 0
        last = read_json(aside / f"{remote}.json").get("copy")
        for copy in sorted(left.copies):
            whole = is_complete(cache, copy)
            if copy != last or not whole:
                freed += _remove_copy(cache, view, copy, "an earlier version" if whole else "not complete")
        for part in left.parts:
            if part.exists():  # unless the fetch was finished since
                freed += remove_folder(part, "an unfinished fetch", view)
    return freed


def _remove_copy(cache: Path, view: ProgressView, copy: str, why: str) -> int:
    models, aside = folders(cache)
    with (aside / f"{copy}.json").open("r+b") as listed:
        try:
            fcntl.flock(listed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            view.say(f"kept {models / copy}: a server uses it")
            return 0
        freed = remove_folder(models / copy, why, view) if (models / copy).exists() else 0
        (aside / f"{copy}.json").unlink()  # last, so that what is left of a killed removal is found again
    return freed
