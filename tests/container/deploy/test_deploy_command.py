"""The `lmi deploy` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner, Result

from container.cli import main
from container.deploy import CannotDeploy, deploy_command
from container.errors import BadVariable
from tests.container.deploy.endpoints import IMAGE, MODEL_DATA, ROLE, write_model

SHARED = ("--name", "chat", "--image", IMAGE, "--role", ROLE, "--model-data", MODEL_DATA)


def run(*arguments: str, instance: str = "ml.g5.48xlarge", **env: str) -> Result:
    return CliRunner().invoke(main, ["deploy", *SHARED, "--instance", instance, *arguments], env=env)


def test_a_dry_run_prints_a_program_and_needs_no_boto3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    folder = str(write_model(tmp_path))
    result = run(folder, "--dry-run", "--env", "HF_TOKEN", HF_TOKEN="hf_abc")  # noqa: S106
    assert result.exit_code == 0, result.output
    compile(result.output, "deploy.py", "exec")
    assert "sagemaker.create_endpoint(" in result.output
    assert "hf_abc" not in result.output


def test_each_variant_gets_its_model_and_weight(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / name) for name in ("a", "b")]
    result = run("--variant", f"A={paths[0]}:9", "--variant", f"B={paths[1]}", "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.count("sagemaker.create_model(") == 2
    assert '"InitialVariantWeight": 9.0' in result.output
    assert '"InitialVariantWeight": 1.0' in result.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "Give either PATH or --variant"),
        (("somewhere", "--variant", "A=x"), "Give either PATH or --variant"),
        (("--variant", "x"), "NAME=PATH, NAME=PATH:WEIGHT"),
        (("somewhere", "--dry-run", "--diff"), "cannot be combined"),
        (("/no/such/folder", "--dry-run"), "no such file"),
    ],
)
def test_wrong_arguments_are_explained(arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert reason in result.output
    assert "Traceback" not in result.output


def test_an_unknown_instance_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    result = run(str(write_model(tmp_path)), "--dry-run", instance="ml.g5.48xlrge")
    assert result.exit_code == 1
    assert "did you mean ml.g5.48xlarge?" in result.output


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all settings of AWS."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


@pytest.mark.usefixtures("no_aws")
def test_without_a_region_the_variables_that_set_it_are_named(tmp_path: Path) -> None:
    result = run(str(write_model(tmp_path)), "--image", "lmi-server:cuda")
    assert result.exit_code == 1
    assert "no AWS region: set AWS_REGION or AWS_DEFAULT_REGION, or choose a profile" in result.output


@pytest.mark.usefixtures("no_aws")
@pytest.mark.parametrize(
    ("env", "region"),
    [
        ({"AWS_REGION": "eu-west-3", "AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-3"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
        ({}, "us-east-1"),
    ],
    ids=["AWS_REGION", "AWS_DEFAULT_REGION", "of the image"],
)
def test_the_region_comes_from_the_environment_or_the_image(
    env: dict[str, str], region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions: list[str] = []

    def execute(deployment: object, sagemaker: Any, *others: object) -> None:
        regions.append(sagemaker.meta.region_name)

    monkeypatch.setattr(deploy_command, "execute", execute)
    folder = str(write_model(tmp_path))
    result = run(folder, **env)
    assert (result.exit_code, regions) == (0, [region]), result.output
    program = run(folder, "--dry-run", **env).output
    assert f'boto3.client("sagemaker", region_name="{region}")' in program


@pytest.mark.parametrize(
    "error",
    [CannotDeploy("wrong"), BadVariable("wrong"), PermissionError(13, "wrong", "/m/serving.properties")],
    ids=["plan", "variable", "file"],
)
def test_an_error_of_diff_has_another_exit_code_than_differences(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(deploy_command, "plan", refuse)
    for arguments, exit_code in ((("any", "--diff"), 2), (("any",), 1)):
        result = run(*arguments)
        assert result.exit_code == exit_code
        assert "wrong" in result.output


@pytest.mark.parametrize("name", ["ml.r8g.2xlarge", "ml.c7g.large", "ml.m6gd.xlarge", "ml.c6gn.4xlarge"])
def test_an_instance_with_an_arm_processor_is_rejected(name: str, tmp_path: Path) -> None:
    result = run(str(write_model(tmp_path)), "--dry-run", instance=name)
    assert result.exit_code == 1
    assert f"{name}: has an Arm processor; the image is for x86-64" in result.output


def test_a_reader_of_the_reports_that_leaves_does_not_interrupt_the_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = []

    def execute(deployment: object, sagemaker: object, environ: object, say: Callable[[str], None]) -> None:
        say("create_model: a")
        finished.append(True)

    monkeypatch.setattr(deploy_command, "execute", execute)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        folder = str(write_model(tmp_path))
        main(["deploy", *SHARED, "--instance", "ml.g5.48xlarge", folder], standalone_mode=False)
    assert finished
