"""Tables printed by the measuring commands."""

from __future__ import annotations

import io

from rich.console import Console

from container.measure.output import Table


def test_brackets_in_a_table_are_not_read_as_markup() -> None:
    screen = io.StringIO()
    table = Table("[title]", ("name [s]", "[/v1/x]"), (("v[int8]", "[/not/markup]"),))
    table.print_to(Console(file=screen, width=80))
    for text in ("[title]", "name [s]", "[/v1/x]", "v[int8]", "[/not/markup]"):
        assert text in screen.getvalue()
