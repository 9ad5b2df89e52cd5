"""The program that `lmi deploy --dry-run` prints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.deploy.deployment import Deployment
from container.deploy.script import as_script
from container.deploy.variables import ShellSecret, with_secrets
from tests.container.deploy.endpoints import FakeClient, planned, write_model
from tests.support.paths import REPO_ROOT

SHELL = {"HF_TOKEN": "hf_abc"}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    others = {"QUOTES": 'say "hi"', "BOTH": """it's "that" one""", "LINES": "a\\\n\u00e9\u2028"}
    environment = {"HF_TOKEN": ShellSecret("HF_TOKEN"), **others}
    return planned(write_model(tmp_path, "engine=MPI"), environment=environment)


def run(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Run the program of a deployment that succeeds, and return its calls."""
    client = FakeClient({"EndpointConfigName": deployment.config_name})
    monkeypatch.setitem(sys.modules, "boto3", SimpleNamespace(client=lambda service: client))
    monkeypatch.setenv("HF_TOKEN", SHELL["HF_TOKEN"])
    exec(compile(as_script(deployment), "deploy.py", "exec"), {})  # noqa: S102
    return client.calls


def test_the_program_makes_the_same_calls(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = run(deployment, monkeypatch)
    expected = [(call.method, with_secrets(call.parameters, SHELL)) for call in deployment.calls]
    waiter_parameters = {"EndpointName": "chat", "WaiterConfig": deployment.waiter}
    assert calls == [
        *expected,
        ("endpoint_in_service", waiter_parameters),
        ("describe_endpoint", {"EndpointName": "chat"}),
    ]


def test_without_secrets_the_program_imports_only_boto3(tmp_path: Path) -> None:
    program = as_script(planned(write_model(tmp_path)))
    assert "import os" not in program
    compile(program, "deploy.py", "exec")


def test_quotes_in_a_note_cannot_break_the_program(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(replace(deployment, notes=('a prefix """ + boom + """ \\',)), monkeypatch)


@pytest.mark.parametrize("name", ["chat", "c" * 35, "c" * 36])
def test_the_program_is_formatted(name: str, deployment: Deployment) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    program = as_script(replace(deployment, endpoint=name))
    command = [ruff, "format", "--isolated", "--stdin-filename", "deploy.py", "-"]
    result = subprocess.run(command, input=program, capture_output=True, text=True, check=True, cwd=REPO_ROOT)
    assert result.stdout == program
