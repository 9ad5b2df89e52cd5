"""The grammar, against a second reading of the rules of java.util.Properties written character by character."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmi_server.properties.grammar import MAX_FILE_BYTES, parse

BLANKS = " \t\f"


class MalformedEscape(Exception):
    pass


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first natural line, logical line), as a state machine over characters."""
    line: list[str] = []
    number, start, previous = 1, 0, ""
    skip_blanks, new_line, comment, continued, backslash = True, True, False, False, False
    for c in text:
        second_of_pair = previous == "\r" and c == "\n"
        previous = c
        if second_of_pair:
            continue
        if c == "\r":
            c = "\n"
        if skip_blanks:
            if c in BLANKS:
                continue
            if c == "\n" and not continued:
                number += 1
                continue
            skip_blanks = continued = False
        if new_line:
            new_line = False
            start = number
            comment = c in "#!"
        if c != "\n":
            line.append(c)
            backslash = not backslash if c == "\\" else False
            continue
        number += 1
        skip_blanks = True
        if not comment and line and backslash:
            line.pop()
            continued, backslash = True, False
            continue
        if line and not comment:
            yield start, "".join(line)
        line, new_line, comment, backslash = [], True, False, False
    if backslash and not comment:
        line.pop()
    if line and not comment:
        yield start, "".join(line)


def unescape(text: str) -> str:
    out: list[str] = []
    position = 0
    while position < len(text):
        c = text[position]
        position += 1
        if c != "\\":
            out.append(c)
            continue
        if position == len(text):
            break
        c = text[position]
        position += 1
        if c == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise MalformedEscape
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append({"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(c, c))
    return "".join(out)


def split(line: str) -> tuple[str, str]:
    key_end, backslash = 0, False
    while key_end < len(line) and (backslash or line[key_end] not in "=:" + BLANKS):
        backslash = not backslash if line[key_end] == "\\" else False
        key_end += 1
    value_start, separator = key_end, False
    while value_start < len(line):
        c = line[value_start]
        if c in "=:" and not separator:
            separator = True
        elif c not in BLANKS:
            break
        value_start += 1
    return line[:key_end], line[value_start:]


def java(text: str) -> tuple[list[tuple[int, str, str]], list[int]]:
    """(entries, numbers of lines with a malformed escape)."""
    entries, malformed = [], []
    for number, line in logical_lines(text):
        try:
            key, value = map(unescape, split(line))
        except MalformedEscape:
            malformed.append(number)
        else:
            entries.append((number, key, value))
    return entries, malformed


PIECES = st.sampled_from(
    [
        *"ab=: \t\f\\#!\n\r",
        "\r\n",
        "\\\n",
        "\\\r\n",
        "\\u0041",
        "\\u00",
        "\\u",
        "\\\\",
        "option.x",
        "é",
        "0",
        "\\ ",
        "\\=",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
@example("a=1 # x")
@example("  # comment\\\nkey\\\n   = value\\")
@example("a\\\\=b\\=c")
@example("\\\n\nkey = v")
@example("# c\n\\\n! not a comment")
def test_reads_what_java_reads(text: str) -> None:
    document = parse(text.encode("iso-8859-1"))
    entries, malformed = java(text)
    assert [(entry.line, entry.key, entry.value) for entry in document.entries] == entries
    assert [problem.line for problem in document.problems] == malformed


ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def written(text: str, is_key: bool) -> str:
    """A text as one would write it in a file, every odd character escaped."""
    out = []
    for position, c in enumerate(text):
        if c in "\\#!=:" or (c == " " and (is_key or position == 0)):
            out.append("\\" + c)
        elif c.isascii() and c.isprintable():
            out.append(c)
        else:
            units = c.encode("utf-16-be").hex()
            out += [f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)]
    return "".join(out)


@given(
    st.lists(st.tuples(ANY_TEXT.filter(bool), ANY_TEXT), max_size=8),
    st.sampled_from(["=", ":", " = ", "\t", " :"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_every_key_and_value_survives_being_written(
    pairs: list[tuple[str, str]], separator: str, end: str
) -> None:
    text = "".join(f"{written(key, True)}{separator}{written(value, False)}{end}" for key, value in pairs)
    document = parse(text.encode("ascii"))
    assert [(entry.key, entry.value) for entry in document.entries] == pairs
    assert [entry.line for entry in document.entries] == list(range(1, len(pairs) + 1))


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(data: bytes) -> None:
    document = parse(data)
    assert all(problem.reason for problem in document.problems + document.warnings)


def warnings_of(data: bytes) -> list[tuple[int | None, str]]:
    return [(warning.line, warning.reason) for warning in parse(data).warnings]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a=1\nb = 2 # two\n", 2, "a comment needs a line of its own; '# two' is part of the value"),
        (b'a="x"\n', 1, "quotes are not removed"),
        (b"a=1\n\na=2\n", 3, "the key stands on line 1 already; this line wins"),
        ("a=é\n".encode(), 1, "write \\u00e9"),
        ("a=😀\n".encode(), 1, "write \\ud83d\\ude00"),
        (b"a=\x93x\x94\n", 1, "control characters"),
    ],
)
def test_warns_where_the_format_surprises(data: bytes, line: int, reason: str) -> None:
    [(found_line, found)] = warnings_of(data)
    assert found_line == line
    assert reason in found


def test_does_not_warn_of_plain_files() -> None:
    assert warnings_of(b"# caf\xc3\xa9\nengine = MPI\noption.model_id = s3://a/b#c\nx=caf\xe9\n") == []


@pytest.mark.parametrize(
    ("data", "blanks"), [(b"a=1 \n", True), (b"a=1\t\r\n", True), (b"a=1\\ \n", False), (b"a=1\n", False)]
)
def test_sees_blanks_at_the_end(data: bytes, blanks: bool) -> None:
    [entry] = parse(data).entries
    assert entry.ends_in_blanks is blanks


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a=1\nb={{s3_url}}\n", "{{s3_url}} is a template's placeholder"),
        (b"a=1\nb=\\u12\nc=3\n", "needs four hexadecimal digits"),
    ],
)
def test_says_what_is_wrong_with_a_line_and_reads_on(data: bytes, reason: str) -> None:
    document = parse(data, "some/file")
    [problem] = document.problems
    assert (problem.file, problem.line, problem.key) == ("some/file", 2, "b")
    assert reason in problem.reason
    assert document.entries[0].key == "a"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xef\xbb\xbfengine=MPI", "byte order mark"),
        ("engine=MPI".encode("utf-16"), "NUL bytes"),
        (b"#" * (MAX_FILE_BYTES + 1), str(MAX_FILE_BYTES)),
    ],
)
def test_refuses_what_is_no_properties_file(data: bytes, reason: str) -> None:
    [problem] = parse(data).problems
    assert reason in problem.reason
