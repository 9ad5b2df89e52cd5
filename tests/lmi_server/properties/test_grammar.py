"""The grammar of java.util.Properties, and warnings about its pitfalls."""

from __future__ import annotations

from pathlib import Path

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_server.properties.grammar import MAX_FILE_BYTES, parse
from lmi_server.properties.loader import examine

PIECES = st.sampled_from(
    [
        *"ab=: \t\f\\#!\n\r",
        "\r\n",
        "\\\n",
        "\\\r\n",
        "\\u0041",
        "\\ud83d",
        "\\ude00",
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
def test_parses_like_javaproperties(text: str) -> None:
    """`parse` feeds the library line by line. The result must equal that for the whole text."""
    document = parse(text.encode("iso-8859-1"))
    found = [(entry.key, entry.value) for entry in document.entries]
    numbers = [entry.line for entry in document.entries] + [
        problem.line or 0 for problem in document.problems
    ]
    assert len(set(numbers)) == len(numbers)
    try:
        elements = list(javaproperties.parse(text))
    except javaproperties.InvalidUEscapeError:
        assert document.problems
    else:
        expected = [(e.key, e.value) for e in elements if isinstance(e, javaproperties.KeyValue)]
        assert found == expected
        assert all("placeholder" in problem.reason for problem in document.problems)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1 # x", [(1, "a", "1 # x")]),
        ("  # comment\\\nkey\\\n   = value\\", [(2, "key", "value")]),
        ("a\\\\=b\\=c", [(1, "a\\", "b=c")]),
        ("\\ \\:\\u00e9=\\ud83d\\ude00 ", [(1, " :é", "😀 ")]),
        ("\\\n\nkey = v", [(3, "key", "v")]),
        ("# c\n\\\n! not a comment", [(2, "!", "not a comment")]),
        ("a:b\rc d\r\n\te\t=\tf \n", [(1, "a", "b"), (2, "c", "d"), (3, "e", "f ")]),
    ],
)
def test_parses_like_java(text: str, entries: list[tuple[int, str, str]]) -> None:
    found = parse(text.encode("iso-8859-1")).entries
    assert [(entry.line, entry.key, entry.value) for entry in found] == entries


@given(st.binary(max_size=200))
def test_arbitrary_bytes_do_not_raise(data: bytes) -> None:
    document = parse(data)
    assert all(problem.reason for problem in document.problems + document.warnings)


def warnings_of(data: bytes) -> list[tuple[int | None, str]]:
    return [(warning.line, warning.reason) for warning in parse(data).warnings]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a=1\nb = 2 # two\n", 2, "comments must be on separate lines; '# two' is part of the value"),
        (b'a="x"\n', 1, "quotes are not removed"),
        (b"a=1\n\na=2\n", 3, "duplicate key, also on line 1; this line takes effect"),
        ("a=é\n".encode(), 1, "write \\u00e9"),
        ("a=😀\n".encode(), 1, "write \\ud83d\\ude00"),
        (b"a=\x93x\x94\n", 1, "control characters"),
    ],
)
def test_warns_about_pitfalls_of_the_format(data: bytes, line: int, reason: str) -> None:
    [(found_line, found)] = warnings_of(data)
    assert found_line == line
    assert reason in found


def test_does_not_warn_about_plain_files() -> None:
    assert warnings_of(b"# caf\xc3\xa9\nengine = MPI\noption.model_id = s3://a/b#c\nx=caf\xe9\n") == []


@pytest.mark.parametrize(
    ("data", "blanks"), [(b"a=1 \n", True), (b"a=1\t\r\n", True), (b"a=1\\ \n", False), (b"a=1\n", False)]
)
def test_detects_trailing_blanks(data: bytes, blanks: bool) -> None:
    [entry] = parse(data).entries
    assert entry.ends_in_blanks is blanks


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a=1\nb={{s3_url}}\n", "{{s3_url}} is a template placeholder"),
        (b"a=1\nb=\\u12\nc=3\n", "needs four hexadecimal digits"),
    ],
)
def test_reports_an_invalid_line_and_continues(data: bytes, reason: str) -> None:
    document = parse(data, "some/file")
    [problem] = document.problems
    assert (problem.source.file, problem.line, problem.key) == ("some/file", 2, "b")
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
def test_refuses_other_file_formats(data: bytes, reason: str) -> None:
    [problem] = parse(data).problems
    assert reason in problem.reason


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        (
            "large.properties",
            2 * MAX_FILE_BYTES,
            f"not a serving.properties: larger than {MAX_FILE_BYTES} bytes",
        ),
        (
            "model.gguf",
            2 * MAX_FILE_BYTES,
            "not a serving.properties, but weights; pass the model's folder, or set option.model_id to the GGUF file",
        ),
        ("model.safetensors", 8, "not a serving.properties, but weights; pass the model's folder"),
    ],
    ids=["large", "gguf", "safetensors"],
)
def test_other_files_are_refused(name: str, size: int, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"#" * size)
    [problem] = examine(tmp_path / name, {}).problems
    assert problem.reason == reason
