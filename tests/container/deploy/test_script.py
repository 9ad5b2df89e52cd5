"""The program that `lmi deploy --dry-run` prints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from container.deploy.deployment import Deployment
from container.deploy.script import as_script
from container.deploy.variables import ShellSecret, with_secrets
from tests.container.deploy.endpoints import planned, write_model
from tests.support.paths import REPO_ROOT

SECRET = "hf_abc"
SHELL = {"HF_TOKEN": SECRET}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    others = {"QUOTES": 'say "hi"', "BOTH": """it's "that" one""", "LINES": "a\\\n\u00e9\u2028"}
    environment = {"HF_TOKEN": ShellSecret("HF_TOKEN"), **others}
    return planned(write_model(tmp_path, "engine=MPI"), environment=environment)


def run(
    program: str, monkeypatch: pytest.MonkeyPatch, description: dict[str, str]
) -> list[tuple[str, dict[str, Any]]]:
    """Run a program with a fake boto3 and return its calls. `description` is the response of `describe_endpoint`."""
    calls: list[tuple[str, dict[str, Any]]] = []

    class Client:
        def __getattr__(self, method: str) -> Any:
            return lambda **parameters: calls.append((method, parameters)) or description

        def get_waiter(self, name: str) -> Any:
            return SimpleNamespace(wait=lambda **parameters: calls.append((name, parameters)))

    stub = ModuleType("boto3")
    stub.client = lambda service: Client()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "boto3", stub)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    exec(compile(program, "deploy.py", "exec"), {})  # noqa: S102
    return calls


def test_the_program_makes_the_same_calls(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = run(as_script(deployment), monkeypatch, {"EndpointConfigName": deployment.config_name})
    expected = [(call.method, with_secrets(call.parameters, SHELL)) for call in deployment.calls]
    waiter_parameters = {"EndpointName": "chat", "WaiterConfig": deployment.waiter}
    assert calls == [
        *expected,
        ("endpoint_in_service", waiter_parameters),
        ("describe_endpoint", {"EndpointName": "chat"}),
    ]


def test_the_program_reads_secrets_from_its_environment(deployment: Deployment) -> None:
    program = as_script(deployment)
    assert 'os.environ["HF_TOKEN"]' in program
    assert SECRET not in program


def test_without_secrets_the_program_imports_only_boto3(tmp_path: Path) -> None:
    program = as_script(planned(write_model(tmp_path)))
    assert "import os" not in program
    compile(program, "deploy.py", "exec")


def test_quotes_in_a_note_cannot_break_the_program(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = as_script(replace(deployment, notes=('a prefix """ + boom + """ \\',)))
    assert run(program, monkeypatch, {"EndpointConfigName": deployment.config_name})


@pytest.mark.parametrize("name", ["chat", "c" * 35, "c" * 36])
def test_the_program_is_formatted(name: str, deployment: Deployment) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    program = as_script(replace(deployment, endpoint=name))
    command = [ruff, "format", "--isolated", "--stdin-filename", "deploy.py", "-"]
    result = subprocess.run(command, input=program, capture_output=True, text=True, check=True, cwd=REPO_ROOT)
    assert result.stdout == program
