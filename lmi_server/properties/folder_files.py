"""Files that LMI uses and this server does not. They are rejected, not silently ignored."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable
from pathlib import Path

from lmi_server.properties.handler import MODEL_FILE, REQUIREMENTS, HandlerFile, Supplies
from lmi_server.properties.problems import Problem, Source

_ADAPTERS = "adapters"
_REASONS = {
    MODEL_FILE: "a handler is only loaded from the folder of serving.properties",
    REQUIREMENTS: "packages are only installed for a handler (model.py); install them into the image",
    _ADAPTERS: "LoRA adapters are not supported yet",
}


def unused_files(
    folders: Iterable[Path], code: HandlerFile | None = None, invalid: Path | None = None
) -> list[Problem]:
    """Return a problem for each unused file in the model's folders that would change what LMI serves.

    `code` is the user's file. If it supplies anything, it and its requirements count as used. A handler may use the
    whole folder.
    `invalid`: the folder of a handler that has a problem of its own, so whether its files are used is unknown.
    """
    takes_adapters = code is not None and code.supplies is Supplies.HANDLER
    names = [name for name in _REASONS if name != _ADAPTERS or not takes_adapters]
    found = [
        folder / name
        for folder in folders
        for name in names
        if _is_present(folder / name) and folder != invalid
    ]
    reasons = {place: _REASONS[place.name] for place in found}
    misnamed = None
    if code is not None and code.supplies is Supplies.NOTHING:
        # `code.path` is absolute, and the user may have typed a relative path.
        misnamed = next((place for place in found if place.resolve() == code.path), code.path)
        reasons[misnamed] = (
            f"it defines no function {code.function} (option.handler), no @prediction_handler, no predict_fn and no"
            " formatter"
        )
    elif code is not None:
        used = [path for path in (code.path, code.requirements) if path is not None]
        # An identical copy of a used file in the model's folder has no effect.
        reasons = {
            place: why
            for place, why in reasons.items()
            if not any(filecmp.cmp(place, path, shallow=False) for path in used)
        }
    return [
        Problem(
            Source(str(place)),
            "",
            "",
            f"not used here: {reason}; remove it (--lenient or LMI_LENIENT=true ignores it)",
            nearest=code.nearest if code is not None and place == misnamed else "",
        )
        for place, reason in reasons.items()
    ]


def _is_present(place: Path) -> bool:
    """Return True if the file exists or, for `adapters`, if the folder exists and is not empty."""
    if place.name == _ADAPTERS:
        return place.is_dir() and any(place.iterdir())
    return place.is_file()
