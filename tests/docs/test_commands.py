"""Every command and program in the documentation runs unchanged against one server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from container.cli import main
from container.endpoint.declared import declare
from container.endpoint.declared import read as read_declared
from lmi_server.properties.loader import load
from tests.docs.not_run import NOT_RUN, entry
from tests.docs.pages import Block, blocks, commands, read
from tests.e2e.conftest import current_limits, scheduler
from tests.support.endpoints import ENDPOINT, endpoint_for_server
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.server import ADMIN_HEADERS, ADMIN_TOKEN, Server

LANGUAGES = {"shell", "python", "properties", "json", "text", "toml", "yaml"}
TIMEOUT_SECONDS = 600
SHELL = f"""
set -eu
curl() {{ command curl -fS --max-time 500 "$@"; }}
lmi() {{ {shlex.quote(sys.executable)} -m container "$@"; }}
"""
"""Makes curl fail on an HTTP error status."""
_EXPECTED_IN_RESPONSES = (
    "generated_text",
    '"choices"',
    '"object":"list"',
    "Healthy",
    "max_rolling_batch_size",
    "# TYPE lmi_",
)
_IN_PROCESS = ("lmi check ", "lmi kv-waste ", "lmi options", "lmi simulate ")
"""Commands that need neither a shell, nor torch, nor a server. In this process they run faster."""
_LONG = (
    "lmi bench http://127.0.0.1:8080 --preset ",
    "lmi simulate properties_examples/llama-dummy --instance ",
)
"""Commands that take long, and differ from another one only in the options that describe load and machine."""


def unique_commands() -> list[Block]:
    return list({command.text.removeprefix(".venv/bin/"): command for command in commands()}.values())


def run_commands(in_process: bool) -> list[Any]:
    """Parameters of the tests that run commands."""
    return [
        pytest.param(
            command, id=str(command), marks=pytest.mark.long if command.text.startswith(_LONG) else ()
        )
        for command in unique_commands()
        if entry(command.text) is None and command.text.startswith(_IN_PROCESS) is in_process
    ]


def test_every_block_has_a_known_language() -> None:
    unknown = [
        f"{block}: {block.language or 'none'}" for block in blocks() if block.language not in LANGUAGES
    ]
    assert unknown == []


def test_every_entry_of_not_run_matches_a_command() -> None:
    texts = [command.text for command in commands()]
    assert [start for start in NOT_RUN if start not in map(entry, texts)] == []


@pytest.fixture
def restored_settings(paged_server: Server) -> Iterator[None]:
    """Restore the settings of the shared server after the test."""
    client = paged_server.client
    before = current_limits(client)
    yield
    assert scheduler(client, **before).status == 200


def adapt(text: str, server: Server) -> str:
    """Adapt a command or program to this checkout and the running server."""
    text = text.replace("http://127.0.0.1:8080", server.base_url).replace(".venv/bin/lmi", "lmi")
    return text.replace(".venv/bin/python", shlex.quote(sys.executable))


@pytest.mark.parametrize("command", run_commands(in_process=True))
def test_a_command_without_a_server_succeeds(command: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO_ROOT)
    done = CliRunner().invoke(main, shlex.split(command.text)[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout


@pytest.mark.parametrize("command", run_commands(in_process=False))
@pytest.mark.e2e
@pytest.mark.model
def test_a_command_succeeds(command: Block, paged_server: Server, restored_settings: None) -> None:
    done = subprocess.run(
        ["bash", "-c", SHELL + adapt(command.text, paged_server)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        cwd=REPO_ROOT,
        env=child_environment({"LMI_ADMIN_TOKEN": ADMIN_TOKEN}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    if command.text.startswith("curl "):
        assert '"error"' not in done.stdout
        assert any(word in done.stdout for word in _EXPECTED_IN_RESPONSES), done.stdout


@pytest.mark.parametrize(
    "command",
    [one for one in unique_commands() if entry(one.text) or one.text.startswith(_LONG)],
    ids=str,
)
def test_a_command_that_is_not_run_or_takes_long_is_valid(command: Block) -> None:
    words = shlex.split(command.text)
    if words[0].endswith("lmi"):
        check_lmi(words[1:])
    elif words[0] == "make":
        check_make(words[1:])
    elif match := re.match(r"\.venv/bin/python -m ([\w.]+)", command.text):
        assert importlib.util.find_spec(match[1]) is not None


def check_lmi(words: list[str]) -> None:
    """Check that command and options exist, and load the configuration for `lmi serve`. Raises `click.UsageError`."""
    group = click.Context(main)
    sub = main.get_command(group, words[0])
    assert sub is not None
    context = sub.make_context(words[0], words[1:], parent=group)
    if words[0] == "serve":
        load(REPO_ROOT / context.params["path"], {})


def check_make(words: list[str]) -> None:
    # Variables that `make test` passes on would change the dry run.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    environment["PYTHON"] = sys.executable  # otherwise make searches for Python each time
    done = subprocess.run(
        ["make", "-n", *words], capture_output=True, text=True, check=False, cwd=REPO_ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    makefile = (REPO_ROOT / "Makefile").read_text(encoding="utf-8")
    for name, _, value in (word.partition("=") for word in words if "=" in word):
        assert f"$({name})" in makefile or f"$(filter list,$({name}))" in makefile
        if name == "PROPERTIES":
            load(REPO_ROOT / value, {})


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if "djl_python" not in block.text], ids=str
)
@pytest.mark.e2e
@pytest.mark.model
def test_a_python_program_succeeds(block: Block, paged_server: Server) -> None:
    creates = "create_endpoint(" in block.text
    with endpoint_for_server(paged_server.port, deployed=not creates) as platform:
        environment = {
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": platform.url,
            "AWS_ENDPOINT_URL_SAGEMAKER": platform.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }
        done = subprocess.run(
            [sys.executable, "-c", adapt(block.text, paged_server)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env=child_environment(environment),
        )
        assert done.returncode == 0, done.stderr
        if creates:
            assert platform.wait("InService")["EndpointName"] == ENDPOINT
        else:
            assert "Paris" in done.stdout


@pytest.mark.parametrize("block", blocks("properties"), ids=str)
def test_a_configuration_loads_without_warnings(block: Block, tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(block.text, encoding="latin-1")
    assert load(tmp_path, {}).warnings == ()


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_a_declared_endpoint_goes_into_service(block: Block, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(block.text, encoding="utf-8")
    with endpoint_for_server(1, deployed=False) as platform:
        declare(read_declared(tmp_path / "file"), platform.platform)
        assert platform.wait("InService")["EndpointName"] == ENDPOINT


def json_blocks(policies: bool) -> list[Block]:
    """The IAM policies of all pages, or their other JSON, which is responses."""
    return [block for block in blocks("json") if ('"Statement"' in block.text) is policies]


@pytest.mark.parametrize("block", json_blocks(policies=False), ids=str)
@pytest.mark.e2e
@pytest.mark.model
def test_a_response_is_as_shown(block: Block, paged_server: Server) -> None:
    """Up to the second decimal place of log-probabilities."""

    def parse(text: str) -> Any:
        return json.loads(text, parse_float=lambda number: round(float(number), 2))

    streamed = block.text.startswith('{"token"')
    shown = [parse(line) for line in block.text.splitlines()] if streamed else parse(block.text)
    details = {} if streamed else shown.get("details", {})
    num_tokens = len(shown) if streamed else details.get("generated_tokens", 16)
    parameters = {"max_new_tokens": num_tokens, "details": bool(details)}
    body = {"inputs": "The capital of France is", "parameters": parameters, "stream": streamed}
    reply = paged_server.client.post("/invocations", body).body
    assert ([parse(line) for line in reply.splitlines()] if streamed else parse(reply)) == shown


@pytest.mark.parametrize("block", json_blocks(policies=True), ids=str)
def test_an_iam_policy_grants_what_the_role_needs(block: Block) -> None:
    statements = json.loads(block.text)["Statement"]
    actions = {action for one in statements for action in one["Action"]}
    if any("Principal" in one for one in statements):
        (trust,) = statements
        assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
        assert actions == {"sts:AssumeRole"}
    else:
        assert actions >= {"s3:ListBucket", "s3:GetObject"}


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_kubernetes_manifest_matches_the_image(block: Block, tmp_path: Path) -> None:
    deployment, service = yaml.safe_load_all(block.text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["serve"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/ping", "port": 8080}
    assert pod["terminationGracePeriodSeconds"] >= 30
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/dev/shm"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    options = {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("OPTION_")}
    assert load(tmp_path, options).config.source.model_id


@pytest.mark.e2e
@pytest.mark.model
def test_every_reported_metric_is_documented(paged_server: Server) -> None:
    types = re.findall(r"^# TYPE (lmi_\w+) ", paged_server.client.get("/metrics").body, re.MULTILINE)
    names = [name for name in types if not name.endswith("_created")]
    page = (REPO_ROOT / "docs/operating.md").read_text(encoding="utf-8")
    assert names
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.e2e
@pytest.mark.model
def test_every_documented_route_exists(paged_server: Server) -> None:
    rows = read(REPO_ROOT / "docs/api.md").rows("Routes")
    routes = [route.split() for row in rows for route in re.findall(r"`([A-Z]+ /[^`]*)`", row[0])]
    assert len(routes) > 10
    for method, path in routes:
        with paged_server.client.call("OPTIONS", re.sub(r"{\w+}", "any", path), None, ADMIN_HEADERS) as call:
            assert method in call.read().headers["allow"], path
