"""Derive configurations from others by changing some options."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import javaproperties

from container.measure.compare.configurations import NamedPath
from container.run import launch
from lmi_server.config import ModelSource, holds_model
from lmi_server.properties import grammar, loader
from lmi_server.properties.handler import REQUIREMENTS
from lmi_server.properties.options import by_name
from lmi_server.values.show import one_line

_MODEL = "option.model_id"
_ENTRY_POINT = "option.entryPoint"
_ENCODING = "latin-1"
"""Encoding of Java properties files."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_MAX_COMMENT = 400


def derive(name: str, source: Path, work_folder: Path, changes: Mapping[str, str]) -> NamedPath:
    """Copy configuration `source` to a new folder below `work_folder`, with some options changed or added.

    source: as `NamedPath.path`; changes: values by key. User code is copied; all other files beside the configuration
    are linked. Nothing is checked: a copy has the same problems as its source.
    """
    file = file_of(source)
    target = work_folder / f"{len(list(work_folder.iterdir())):02}"
    target.mkdir()
    runs_code = has_code(file) or _ENTRY_POINT in map(_canonical, changes)
    for path in files_beside(file, runs_code):
        copy = target / path.relative_to(file.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Copied, because the server refuses a handler whose link leads out of the folder.
        if runs_code and is_code(path):
            shutil.copyfile(path, copy)
        else:
            copy.symlink_to(path.resolve())
    (target / loader.FILE_NAME).write_bytes(rewrite(file, changes, target))
    origin = ", ".join(f"{key}={value}" for key, value in changes.items())
    return NamedPath(name, target, f"{source} with {origin}")


def has_code(file: Path) -> bool:
    """Return whether a configuration has user code, such as a handler."""
    found = loader.examine(file, launch.environment(), lenient=True)
    return found.user_code is not None or found.has_invalid_handler


def files_beside(file: Path, runs_code: bool) -> Iterator[Path]:
    """Yield all files and folders beside a configuration. A folder that may have its code is replaced by its content.

    runs_code: see `has_code`. Hidden folders, such as virtual environments, have none.
    """

    def within(folder: Path) -> Iterator[Path]:
        for path in folder.iterdir():
            is_linked = path.is_symlink() or path.name.startswith(".") or not runs_code
            if not is_linked and path.is_dir() and any(path.rglob("*.py")):
                yield from within(path)
            elif path.name != loader.FILE_NAME or folder != file.parent:
                yield path

    return within(file.parent)


def is_code(path: Path) -> bool:
    """Return whether a path beside a configuration is user code or its requirements, if there is user code."""
    return path.is_file() and (path.suffix == ".py" or path.name == REQUIREMENTS)


def file_of(path: Path) -> Path:
    """Return the properties file of a PATH, which may be a folder."""
    return path / loader.FILE_NAME if path.is_dir() else path


def rewrite(
    file: Path, changes: Mapping[str, str], folder: Path, heading: Sequence[str] = (), effect: str = ""
) -> bytes:
    """Return the content of `file` with changed options. All other lines and the comments stay as they are.

    changes: values by key; folder: folder that the content is for (the model stays the same if it is another folder);
    heading: comments at the top; effect: effect of the changes, for a comment above each; empty for no comments.
    """
    data = file.read_bytes() if file.is_file() else b""
    entries = grammar.parse(data, str(file)).entries
    lines = _LINE_END.split(data.decode(_ENCODING))
    if not lines[-1]:
        lines.pop()
    pending = {_canonical(key): (value, effect) for key, value in changes.items()}
    if folder.resolve() != file.parent.resolve() and (model := _model_path(entries, file.parent)):
        pending.setdefault(_MODEL, (model, effect and "the same model, from this folder"))
    wanted = set(pending)
    for entry in reversed(entries):
        key = _canonical(entry.key)
        if key in wanted:
            begin = entry.line - 1
            end = begin + len(_LINE_END.split(entry.text))
            # If an option occurs several times, the last line counts; the other lines are dropped.
            lines[begin:end] = _lines(key, *pending.pop(key), f"was {entry.value}") if key in pending else []
    for key, (value, why) in pending.items():
        lines += _lines(key, value, why, "was not set")
    text = "\n".join([*map(_comment, heading), *lines]) + "\n"
    return text.encode(_ENCODING, errors="backslashreplace")


def _lines(key: str, value: str, why: str, before: str) -> list[str]:
    comments = [_comment(f"{before}; {why}")] if why else []
    return [*comments, javaproperties.join_key_value(key, value)]


def _comment(text: str) -> str:
    return f"# {one_line(text, _MAX_COMMENT)}"


def _model_path(entries: Iterable[grammar.Entry], folder: Path) -> str:
    """Return the model's path on this machine, for a copy of the file in another folder; empty if it has none.

    entries, folder: the entries and the folder of the original file.
    """
    named = [entry.value.strip() for entry in entries if _canonical(entry.key) == _MODEL]
    path = ModelSource(named[-1] if named else None, str(folder)).local_path
    return str(path) if (path.exists() if named else holds_model(path)) else ""


def _canonical(key: str) -> str:
    """Return the option's name if `key` is an alias, else `key`."""
    option = by_name().get(key)
    return option.name if option else key
