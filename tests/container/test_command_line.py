"""The help of the argument that several commands share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from container.explain.check_command import check
from container.serve_command import serve


@pytest.mark.parametrize("command", [serve, check], ids=["serve", "check"])
def test_the_help_names_every_kind_of_path(command: click.Command) -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    for kind in (
        "a serving.properties file",
        "a model's folder",
        "a folder of several models",
        "LMI_MODEL_DIR",
    ):
        assert kind in text
