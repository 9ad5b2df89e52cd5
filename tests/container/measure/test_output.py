"""Tables printed by the measuring commands."""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path

import click
import pytest
from rich.console import Console

from container.measure.output import Table, require_writable, write_all, write_json


def test_brackets_in_a_table_are_not_read_as_markup() -> None:
    screen = io.StringIO()
    table = Table("[title]", ("name [s]", "[/v1/x]"), (("v[int8]", "[/not/markup]"),))
    table.print_to(Console(file=screen, width=80))
    for text in ("[title]", "name [s]", "[/v1/x]", "v[int8]", "[/not/markup]"):
        assert text in screen.getvalue()


def test_a_file_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "new.json", Path("-"), None)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (tmp_path / "old.json").touch()
    require_writable(tmp_path / "old.json")
    with pytest.raises(click.UsageError, match=r"new\.json: cannot be written"):
        require_writable(tmp_path / "new.json")
    with pytest.raises(click.UsageError, match="there is no folder"):
        require_writable(tmp_path / "none" / "new.json")


def test_a_file_that_cannot_be_written_does_not_prevent_the_others(tmp_path: Path) -> None:
    paths = [tmp_path / "gone" / "1.json", tmp_path / "2.json", tmp_path / "gone" / "3.json"]
    with pytest.raises(click.ClickException, match=r"1\.json: No such file.*\n.*3\.json: No such file"):
        write_all(*(functools.partial(write_json, {}, path) for path in paths))
    assert paths[1].exists()
