"""What the tables of the measuring commands look like."""

from __future__ import annotations

import io

from rich.console import Console

from container.measure.output import Table


def test_brackets_in_a_table_are_printed_as_they_are() -> None:
    screen = io.StringIO()
    table = Table("[title]", ("name [s]", "[/v1/x]"), (("v[int8]", "[/not/markup]"),))
    table.print_to(Console(file=screen, width=80))
    for text in ("[title]", "name [s]", "[/v1/x]", "v[int8]", "[/not/markup]"):
        assert text in screen.getvalue()
