"""Files that LMI acts on and this server does not: they are refused, not silently ignored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lmi_server.properties.problems import Problem, Source

_REASONS = {
    "model.py": "a user's own handler is not built yet",
    "requirements.txt": "no packages are installed at the start; install them into the image",
    "adapters": "LoRA adapters are not built yet",
}


def unused_files(folders: Iterable[Path]) -> list[Problem]:
    """Return a problem for each file in a model's folders that would change what LMI serves."""
    places = (folder / name for folder in folders for name in _REASONS)
    return [
        Problem(
            Source(str(place)),
            "",
            "",
            f"not used here: {_REASONS[place.name]}; remove it (--lenient or LMI_LENIENT=true ignores it)",
        )
        for place in places
        if _counts(place)
    ]


def _counts(place: Path) -> bool:
    """Whether it exists: a file, or, for `adapters`, a folder that is not empty."""
    if place.name == "adapters":
        return place.is_dir() and any(place.iterdir())
    return place.is_file()
