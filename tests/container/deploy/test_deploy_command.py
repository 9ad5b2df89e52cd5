"""`lmi deploy` as a command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.cli import main
from container.deploy.deploy_command import find_instance
from container.explain.hardware import NoSuchHardwareError
from tests.container.deploy.endpoints import IMAGE, MODEL_DATA, ROLE, write_model
from tests.docs.pages import commands, read
from tests.support.paths import REPO_ROOT

SHELL = {"HF_TOKEN": "hf_abc"}
SHARED = ("--name", "chat", "--image", IMAGE, "--role", ROLE, "--model-data", MODEL_DATA)


def run(*words: str, instance: str = "ml.g5.48xlarge", **env: str) -> Result:
    return CliRunner().invoke(main, ["deploy", *words, *SHARED, "--instance", instance], env=env)


def test_a_dry_run_prints_a_program_and_needs_no_boto3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    done = run(str(write_model(tmp_path)), "--dry-run", "--env", "HF_TOKEN", **SHELL)
    assert done.exit_code == 0, done.output
    compile(done.output, "deploy.py", "exec")
    assert "sagemaker.create_endpoint(" in done.output
    assert "hf_abc" not in done.output


def test_variants(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / name) for name in ("a", "b")]
    done = run("--variant", f"A={paths[0]}:9", "--variant", f"B={paths[1]}", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.output.count("sagemaker.create_model(") == 2
    assert '"InitialVariantWeight": 9.0' in done.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Give either PATH or --variant"),
        (("somewhere", "--variant", "A=x"), "Give either PATH or --variant"),
        (("--variant", "x"), "NAME=PATH, NAME=PATH:WEIGHT"),
        (("somewhere", "--dry-run", "--diff"), "cannot be combined"),
        (("/no/such/folder", "--dry-run"), "no such file"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], reason: str) -> None:
    done = run(*words)
    assert done.exit_code in (1, 2)
    assert reason in done.output
    assert "Traceback" not in done.output


def test_an_unknown_instance_is_refused_with_the_nearest(tmp_path: Path) -> None:
    done = run(str(write_model(tmp_path)), "--dry-run", instance="ml.g5.48xlrge")
    assert done.exit_code == 1
    assert "did you mean ml.g5.48xlarge?" in done.output


def test_instances_without_accelerators_are_taken_as_they_are() -> None:
    assert find_instance("ml.c7i.4xlarge").device == "CPU"
    with pytest.raises(NoSuchHardwareError):
        find_instance("ml.x9.large")


@pytest.mark.model
def test_the_page_shows_what_its_command_prints(bundled_model: Path) -> None:
    page = read(REPO_ROOT / "docs" / "deploying.md")
    (command,) = (one.text for one in commands() if one.text.endswith("--dry-run"))
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert done.output == next(block.text for block in page.blocks("python"))
