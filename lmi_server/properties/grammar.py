"""Parser of Java properties files. It returns keys, values and line numbers, and warns about likely mistakes.

The rules are those of `java.util.Properties`, as the `javaproperties` library implements them: ISO-8859-1, no inline
comments, literal quotes, trailing blanks are kept, the last of duplicate keys wins. `loader.py` knows the option types
and handles trailing blanks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import javaproperties

from lmi_server.properties.options import shown
from lmi_server.properties.problems import Problem, Source

MAX_FILE_BYTES = 256 * 1024
"""Maximum file size. A serving.properties has about ten lines, so a larger file is something else."""

_WEIGHTS = "not a serving.properties, but weights"
_NATURAL_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")
_INLINE_COMMENT = re.compile(r"[ \t]#.*")
_QUOTED = re.compile(r"""\A(["']).*\1\s*\Z""", re.DOTALL)
_BLANKS = " \t\f"


@dataclass(frozen=True, slots=True)
class Entry:
    """One logical line of the file."""

    key: str
    value: str
    """Value with escapes resolved, including trailing blanks."""
    line: int
    """1-based number of the first natural line."""
    text: str
    """Natural lines as they stand in the file, without the last line terminator."""

    @property
    def comment_problem(self) -> str:
        """Error message if the value seems to include a comment, else empty."""
        comment = _INLINE_COMMENT.search(self.value)
        if comment is None:
            return ""
        return f"comments must be on separate lines; {comment.group().strip()!r} is part of the value"

    @property
    def ends_in_blanks(self) -> bool:
        """Whether the value has trailing blanks that are not escaped. Escaped blanks are intentional."""
        return self.value.rstrip(_BLANKS) != self.value and not self.text.endswith(("\\ ", "\\t", "\\f"))


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. The entries are in file order and include duplicates."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Lines:
    """Natural lines of the file, as the file-like object that `javaproperties.parse` reads."""

    lines: list[str]
    num_read: int = 0
    num_parsed: int = 0
    """Number of parsed lines. `lines[num_parsed:num_read]` is the logical line being parsed."""

    def readline(self) -> str:
        if self.num_read == len(self.lines):
            return ""
        self.num_read += 1
        return self.lines[self.num_read - 1]


@dataclass(slots=True)
class _Findings:
    """Problems and warnings collected while one file is parsed."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def problem(self, line: int | None, key: str, value: str, reason: str) -> None:
        self.problems.append(Problem(Source(self.file, line), key, shown(key, value), reason))

    def warning(self, entry: Entry, reason: str) -> None:
        source = Source(self.file, entry.line)
        self.warnings.append(Problem(source, entry.key, shown(entry.key, entry.value), reason))


def parse(data: bytes, file: str = "serving.properties") -> Document:
    """Parse a whole file. Invalid content is reported in `problems` and never raises.

    A malformed `\\u` escape aborts the load in Java. Here it is a problem of its line, and parsing continues.
    """
    found = _Findings(file)
    refusal = _not_properties(data, file)
    if refusal:
        found.problem(None, "", "", refusal)
        return Document(problems=tuple(found.problems))
    lines = _Lines(_NATURAL_LINE.findall(data.decode("iso-8859-1")))
    entries: list[Entry] = []
    while lines.num_read < len(lines.lines):
        try:
            for entry in _entries(lines):
                entries.append(entry)
        except javaproperties.InvalidUEscapeError as error:
            text = "".join(lines.lines[lines.num_parsed : lines.num_read]).strip()
            key, *rest = re.split(r"\s*[=:\s]\s*", text, maxsplit=1)
            found.problem(
                lines.num_parsed + 1,
                key,
                "".join(rest),
                f"malformed escape {error.escape!r}: \\u needs four hexadecimal digits",
            )
            lines.num_parsed = lines.num_read
    for entry in entries:
        _check_entry(entry, found)
    _find_duplicates(entries, found)
    return Document(tuple(entries), tuple(found.problems), tuple(found.warnings))


def placeholder(text: str) -> str:
    """Return the error message for a text with a template placeholder, or an empty string without one."""
    match = _PLACEHOLDER.search(text)
    if not match:
        return ""
    return f"{match.group()} is a template placeholder that was not replaced; write the value itself"


def _not_properties(data: bytes, file: str) -> str:
    if file.endswith(".safetensors"):
        return f"{_WEIGHTS}; pass the model's folder"
    if file.endswith(".gguf"):
        return f"{_WEIGHTS}; pass the model's folder, or set option.model_id to the GGUF file"
    if len(data) > MAX_FILE_BYTES:
        return f"not a serving.properties: larger than {MAX_FILE_BYTES} bytes"
    if data.startswith(b"\xef\xbb\xbf"):
        return "the file begins with a UTF-8 byte order mark (BOM), which corrupts the first key; save it without one"
    if b"\x00" in data:
        return "the file contains NUL bytes, so it is not ISO-8859-1 text (UTF-16?); save it as plain text"
    return ""


def _entries(lines: _Lines) -> Iterator[Entry]:
    for element in javaproperties.parse(lines):
        first = lines.num_parsed + 1
        lines.num_parsed = lines.num_read
        if isinstance(element, javaproperties.KeyValue):
            yield Entry(element.key, element.value, first, element.source.rstrip("\r\n"))


def _check_entry(entry: Entry, found: _Findings) -> None:
    value = entry.value
    if reason := placeholder(f"{entry.key} {value}"):
        found.problem(entry.line, entry.key, value, reason)
    if reason := entry.comment_problem:
        found.warning(entry, reason)
    if _QUOTED.match(value):
        found.warning(entry, "quotes are not removed; they are part of the value")
    if not entry.comment_problem:
        _check_encoding(entry, found)


def _check_encoding(entry: Entry, found: _Findings) -> None:
    if entry.text.isascii():
        return
    try:
        meant = entry.text.encode("iso-8859-1").decode("utf-8")
    except UnicodeDecodeError:
        if re.search(r"[\x80-\x9f]", entry.text):
            found.warning(
                entry, "bytes 0x80 to 0x9f are control characters in ISO-8859-1; write \\u and 4 hex digits"
            )
        return
    odd = next(character for character in meant if not character.isascii())
    escape = json.dumps(odd)[1:-1]
    found.warning(
        entry,
        f"the line is UTF-8, but properties files are ISO-8859-1: {odd!r} is read as"
        f" {odd.encode('utf-8').decode('iso-8859-1')!r}; write {escape}",
    )


def _find_duplicates(entries: list[Entry], found: _Findings) -> None:
    first: dict[str, Entry] = {}
    for entry in entries:
        if entry.key in first:
            found.warning(
                entry, f"duplicate key, also on line {first[entry.key].line}; this line takes effect"
            )
        first[entry.key] = entry
