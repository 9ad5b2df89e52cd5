"""Endpoints declared in a TOML file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.cli import main
from container.endpoint.declared import BadFile, declare, read
from tests.support.endpoints import EndpointLab

FILE = """
[[models]]
ModelName = "small"
[models.PrimaryContainer]
Environment = {OPTION_DTYPE = "fp32"}
[models.PrimaryContainer.ModelDataSource.S3DataSource]
S3Uri = "properties_examples/smollm2-rolling-paged"
S3DataType = "S3Prefix"
CompressionType = "None"

[[endpoint_configs]]
EndpointConfigName = "ab"
[[endpoint_configs.ProductionVariants]]
VariantName = "A"
ModelName = "small"
InitialVariantWeight = 9
[[endpoint_configs.ProductionVariants]]
VariantName = "B"
ModelName = "small"
InitialVariantWeight = 1

[[endpoints]]
EndpointName = "my-endpoint"
EndpointConfigName = "ab"

[alarms.slow]
latency_p90 = 2.0
requests = 20
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "endpoint.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_declares_models_configurations_endpoints_and_alarms(
    platform: EndpointLab, tmp_path: Path
) -> None:
    declare(read(write(tmp_path, FILE)), platform.platform)
    rows = platform.wait("InService")["ProductionVariants"]
    assert [(row["VariantName"], row["DesiredWeight"]) for row in rows] == [("A", 9.0), ("B", 1.0)]
    assert platform.platform.alarms["slow"].latency_p90 == 2.0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "[[models]]",
            "[[model]]",
            r"unknown table model; allowed: models, endpoint_configs, endpoints, alarms",
        ),
        (
            'ModelName = "small"\nInitialVariantWeight = 9',
            'ModelName = "big"',
            "endpoint_configs, number 1: Could not",
        ),
        ("EndpointName", "Endpoint", "endpoints, number 1: .*EndpointName"),
        ("latency_p90", "latency", "alarms: Object contains unknown field `latency`"),
        ("requests = 20", "requests = 0", "alarms: Expected `int` >= 1"),
        ("[[models]]", "[[models", "endpoint.toml: "),
        (
            "[[endpoints]]",
            "[endpoints]",
            r"endpoints: not a list of tables; allowed: \[\[endpoints\]\], with two",
        ),
    ],
)
def test_errors_in_the_file_are_reported_with_their_location(
    old: str, new: str, words: str, platform: EndpointLab, tmp_path: Path
) -> None:
    assert old in FILE
    with pytest.raises(BadFile, match=words):
        declare(read(write(tmp_path, FILE.replace(old, new, 1))), platform.platform)


def test_the_command_rejects_a_bad_file_and_a_used_port(tmp_path: Path) -> None:
    folder = ["--folder", str(tmp_path / "state")]
    run = CliRunner().invoke(main, ["endpoint", str(write(tmp_path, "[[model]]")), "--port", "0", *folder])
    assert run.exit_code == 1
    assert "unknown table model; allowed: models," in run.output
    with socket.create_server(("127.0.0.1", 0)) as listener:
        run = CliRunner().invoke(main, ["endpoint", "--port", str(listener.getsockname()[1]), *folder])
    assert run.exit_code == 1
    assert "of 127.0.0.1: another process uses it" in run.output


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        read(tmp_path / "none.toml")
