"""The user's serving.properties with other values, and comments that say what each change was measured to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import javaproperties

from container.measure.compare.derive import canonical_key, same_model
from lmi_server.properties import grammar, loader
from lmi_server.values.show import one_line

SUFFIX = ".tuned"
_ENCODING = "latin-1"
"""Of Java properties."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_MAX_COMMENT = 400


def file_of(path: Path) -> Path:
    """The file of a PATH, which may be a folder."""
    return path / loader.FILE_NAME if path.is_dir() else path


def tuned_file(
    file: Path, changes: Mapping[str, str], heading: Sequence[str], effect: str, folder: Path
) -> bytes:
    """The content of `file` with changed options; all other lines, and its comments, stay as they are.

    changes: values by option; heading: comments at its beginning; effect: of the changes, for the comment of each;
    folder: where the content is to be, which may be another folder: the model stays the same.
    """
    data = file.read_bytes() if file.is_file() else b""
    entries = grammar.parse(data, str(file)).entries
    lines = _LINE_END.split(data.decode(_ENCODING))
    if not lines[-1]:
        lines.pop()
    pending = {key: (value, effect) for key, value in changes.items()}
    if folder.resolve() != file.parent.resolve():
        for key, value in same_model(entries, file.parent).items():
            pending.setdefault(key, (value, "the same model, from this folder"))
    wanted = set(pending)
    for entry in reversed(entries):
        key = canonical_key(entry.key)
        if key in wanted:
            begin = entry.line - 1
            end = begin + len(_LINE_END.split(entry.text))
            # Of several lines with one option the last counts; the others are left out.
            lines[begin:end] = _lines(key, *pending.pop(key), f"was {entry.value}") if key in pending else []
    for key, (value, why) in pending.items():
        lines += _lines(key, value, why, "was not set")
    text = "\n".join([*map(_comment, heading), *lines]) + "\n"
    return text.encode(_ENCODING, errors="backslashreplace")


def _lines(key: str, value: str, why: str, before: str) -> list[str]:
    return [_comment(f"{before}; {why}"), javaproperties.join_key_value(key, value)]


def _comment(text: str) -> str:
    return f"# {one_line(text, _MAX_COMMENT)}"
