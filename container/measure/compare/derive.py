"""Configurations made from others by changing some options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import javaproperties

from container.measure.compare.configurations import NamedPath
from lmi_server.config import ModelSource
from lmi_server.properties import grammar, loader
from lmi_server.properties.options import by_name

_MODEL = "option.model_id"
_ENCODING = "latin-1"
"""Of Java properties."""


def derive(name: str, source: Path, made: Path, changes: Mapping[str, str]) -> NamedPath:
    """A copy of configuration `source`, in a new folder below `made`, with some options changed or added.

    source: as in `NamedPath`; changes: values by key. A relative model folder becomes absolute. Nothing is checked: the
    problems of a copy are those of its source.
    """
    folder = source if source.is_dir() else source.parent
    file = folder / loader.FILE_NAME if source.is_dir() else source
    data = file.read_bytes() if file.is_file() else b""
    changed = {canonical_key(key): value for key, value in changes.items()}
    entries = grammar.parse(data, str(file)).entries
    for key, model in same_model(entries, folder).items():
        changed.setdefault(key, model)
    kept = [entry.text for entry in entries if canonical_key(entry.key) not in changed]
    lines = [*kept, *(javaproperties.join_key_value(key, value) for key, value in changed.items())]
    target = made / f"{len(list(made.iterdir())):02}"
    target.mkdir()
    (target / loader.FILE_NAME).write_text("\n".join(lines) + "\n", encoding=_ENCODING)
    origin = ", ".join(f"{key}={value}" for key, value in changes.items())
    return NamedPath(name, target, f"{source} with {origin}")


def same_model(entries: Iterable[grammar.Entry], folder: Path) -> dict[str, str]:
    """The option with which a copy of a file in another folder names the same model; none where there is no model.

    entries: of the file; folder: of the file.
    """
    named = [entry.value for entry in entries if canonical_key(entry.key) == _MODEL]
    if named:
        return {_MODEL: _absolute(named[-1], folder)}
    return {_MODEL: str(folder.resolve())} if (folder / "config.json").is_file() else {}


def canonical_key(key: str) -> str:
    """The option's name where `key` is another name of it."""
    option = by_name().get(key)
    return option.name if option else key


def _absolute(model: str, folder: Path) -> str:
    """A local model folder as an absolute path; hub ids and S3 addresses as they are."""
    path = ModelSource(model.strip(), str(folder)).local_path
    return str(path) if path.is_dir() else model
