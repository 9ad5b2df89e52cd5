"""Deployments to `lmi endpoint`, by `lmi deploy` itself and by the program that it prints."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import boto3
import botocore.waiter
import pytest
from click.testing import CliRunner

from container.cli import main
from container.deploy import CannotDeploy, differences
from container.deploy.deployment import Deployment, VariantSpec, plan
from container.deploy.execute import execute
from container.deploy.script import as_script
from container.deploy.variables import ShellSecret
from tests.container.deploy.endpoints import CPU, IMAGE, ROLE, spec, write_model, write_properties
from tests.container.endpoint.fake_containers import FakeLab, fake_lab
from tests.container.endpoint.fake_s3 import FakeS3
from tests.docs.pages import commands
from tests.support.paths import REPO_ROOT

SHELL = {"HF_TOKEN": "hf_abc"}


@pytest.fixture(autouse=True)
def waiters_poll_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.waiter, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(0.05)))


@pytest.fixture
def platform() -> Iterator[FakeLab]:
    with fake_lab() as running:
        yield running


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with FakeS3() as server:
        yield server


@pytest.fixture
def aws(platform: FakeLab, s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that point `lmi deploy` to the platform and to S3."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", platform.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    for name in ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "us-east-1")


@pytest.fixture
def run_program(platform: FakeLab, monkeypatch: pytest.MonkeyPatch) -> Callable[[Deployment], None]:
    """Run the program that creates a deployment."""
    monkeypatch.setenv("HF_TOKEN", SHELL["HF_TOKEN"])
    monkeypatch.setattr(boto3, "client", lambda service: platform.sagemaker)
    return lambda planned: exec(compile(as_script(planned), "deploy.py", "exec"), {})  # noqa: S102


def deployment(
    folder: Path, size: int, update: bool = False, *, count: int = 1, size_b: int = 0, **more: str
) -> Deployment:
    """Plan two variants with weights 9 and 1. The model is a local folder. `more` are environment variables.

    size: batch size of variant A. size_b: of variant B, twice as large by default.
    """
    model = write_model(folder / "model", num_bytes=1000)
    variants = []
    for name, weight, batch in (("A", 9.0, size), ("B", 1.0, size_b or 2 * size)):
        path = folder / f"{name}{batch}"
        write_model(path, f"option.max_rolling_batch_size={batch}", num_bytes=1000)
        variants.append(VariantSpec(name, path, weight))
    secrets = {"HF_TOKEN": ShellSecret("HF_TOKEN")}
    environment = {**secrets, **more}
    planned = plan(
        spec(model_data=f"file://{model}/", environment=environment, count=count), variants, update
    )
    return dataclasses.replace(planned, waiter={"Delay": 1, "MaxAttempts": 4000})


def batch_sizes(platform: FakeLab) -> list[str]:
    return sorted(
        one.environment["OPTION_MAX_ROLLING_BATCH_SIZE"] for one in platform.containers if not one.ended
    )


def carry_out(planned: Deployment, platform: FakeLab) -> list[str]:
    """Execute a deployment and return the messages."""
    messages: list[str] = []
    execute(planned, platform.sagemaker, SHELL, messages.append)
    return messages


def test_an_endpoint_is_created_compared_and_updated(platform: FakeLab, tmp_path: Path) -> None:
    first = deployment(tmp_path, 8)
    messages = carry_out(first, platform)
    assert messages[-1] == "chat is in service"
    assert SHELL["HF_TOKEN"] not in " ".join(messages)
    for variant, container, batch_size in zip("AB", platform.containers, ("8", "16"), strict=True):
        assert container.environment["OPTION_MAX_ROLLING_BATCH_SIZE"] == batch_size
        assert container.environment["HF_TOKEN"] == SHELL["HF_TOKEN"]
        platform.runtime.invoke_endpoint(EndpointName="chat", TargetVariant=variant, Body=b"{}")
        assert len(container.headers) == 1
    running = differences.running_values("chat", platform.sagemaker)
    assert list(differences.differences(running, differences.planned_values(first, SHELL))) == []
    second = deployment(tmp_path, 32, update=True)
    changes = list(differences.differences(running, differences.planned_values(second, SHELL)))
    assert "  option.max_rolling_batch_size: 8 -> 32" in changes
    carry_out(second, platform)
    platform.wait("InService", name="chat")
    assert batch_sizes(platform) == ["32", "64"]


def test_a_failed_endpoint_is_kept_and_its_reason_reported(platform: FakeLab, tmp_path: Path) -> None:
    delete = "; delete the failed endpoint first: aws sagemaker delete-endpoint --endpoint-name chat"
    with pytest.raises(CannotDeploy, match=f"chat is not in service: .*the weights are gone.*{delete}$"):
        carry_out(deployment(tmp_path, 8, UNHEALTHY="the weights are gone"), platform)
    assert platform.sagemaker.describe_endpoint(EndpointName="chat")["EndpointStatus"] == "Failed"
    for update, reason in ((False, "already existing endpoint"), (True, "Cannot update failed endpoint")):
        with pytest.raises(CannotDeploy, match=f"{reason}.*{delete}$"):
            carry_out(deployment(tmp_path, 8, update), platform)


@pytest.mark.usefixtures("aws")
def test_an_update_without_a_count_keeps_the_instances_of_a_scaled_endpoint(
    platform: FakeLab, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, "option.max_rolling_batch_size=8", num_bytes=1000)
    shared = ["--name", "chat", "--instance", CPU.name, "--image", IMAGE, "--role", ROLE]

    def deploy(*more: str) -> str:
        command = ["deploy", str(folder), *shared, "--model-data", f"file://{folder}/", *more]
        return CliRunner().invoke(main, command).output

    deploy()
    scale = {"VariantName": "AllTraffic", "DesiredInstanceCount": 2}
    platform.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName="chat", DesiredWeightsAndCapacities=[scale]
    )
    platform.wait("InService", name="chat")
    assert deploy("--diff") == "no differences\n"
    assert "InitialInstanceCount: 2 -> 1" in deploy("--diff", "--count", "1")
    write_model(folder, "option.max_rolling_batch_size=16", num_bytes=1000)
    deploy("--update")
    platform.wait("InService", name="chat")
    assert batch_sizes(platform) == ["16", "16"]
    deploy("--update", "--count", "1")
    platform.wait("InService", name="chat")
    assert batch_sizes(platform) == ["16"]


def test_an_update_that_is_rolled_back_is_an_error(
    platform: FakeLab, tmp_path: Path, run_program: Callable[[Deployment], None]
) -> None:
    carry_out(deployment(tmp_path, 8), platform)
    unhealthy = {"UNHEALTHY": "the weights are gone"}
    messages: list[str] = []
    with pytest.raises(CannotDeploy, match=r"still in service with chat-.*: .*the weights are gone"):
        execute(
            deployment(tmp_path, 32, update=True, **unhealthy), platform.sagemaker, SHELL, messages.append
        )
    assert "chat is in service" not in messages
    with pytest.raises(SystemExit, match=r"not deployed: .*the weights are gone"):
        run_program(deployment(tmp_path, 64, update=True, **unhealthy))
    assert batch_sizes(platform) == ["16", "8"]


def test_an_update_reuses_the_models_and_configurations_that_exist(platform: FakeLab, tmp_path: Path) -> None:
    first = deployment(tmp_path, 8)
    carry_out(first, platform)

    def update(planned: Deployment, reused: list[str]) -> None:
        messages = carry_out(planned, platform)
        platform.wait("InService", name="chat")
        assert [line for line in messages if "exists" in line] == reused

    model, config = "create_model: exists, reused", "create_endpoint_config: exists, reused"
    update(deployment(tmp_path, 8, True, count=2), [model, model])
    assert batch_sizes(platform) == ["16", "16", "8", "8"]
    update(deployment(tmp_path, 8, True, size_b=32), [model])
    assert batch_sizes(platform) == ["32", "8"]
    update(deployment(tmp_path, 8, True), [model, model, config])
    assert batch_sizes(platform) == ["16", "8"]
    described = platform.sagemaker.describe_endpoint(EndpointName="chat")
    assert described["EndpointConfigName"] == first.config_name


def test_a_failed_update_keeps_the_reused_models(platform: FakeLab, tmp_path: Path) -> None:
    carry_out(deployment(tmp_path, 8), platform)
    with pytest.raises(
        CannotDeploy, match=r"create_endpoint: .*already existing endpoint .*; use --update to change it$"
    ):
        carry_out(deployment(tmp_path, 8, count=2), platform)
    assert len(platform.sagemaker.list_models()["Models"]) == 2
    assert len(platform.sagemaker.list_endpoint_configs()["EndpointConfigs"]) == 1


def test_an_update_of_an_endpoint_that_does_not_exist_is_refused_with_advice(
    platform: FakeLab, tmp_path: Path
) -> None:
    with pytest.raises(CannotDeploy, match=r"Could not find endpoint .*; leave out --update to create it$"):
        carry_out(deployment(tmp_path, 8, update=True), platform)


def test_the_printed_program_creates_the_endpoint_and_may_run_again(
    platform: FakeLab, tmp_path: Path, run_program: Callable[[Deployment], None]
) -> None:
    run_program(deployment(tmp_path, 8))
    assert batch_sizes(platform) == ["16", "8"]
    for _ in range(2):
        run_program(deployment(tmp_path, 8, True, count=2))
        platform.wait("InService", name="chat")
        assert batch_sizes(platform) == ["16", "16", "8", "8"]


@pytest.mark.usefixtures("aws")
def test_a_handlers_own_options_are_compared(tmp_path: Path) -> None:
    folder = shutil.copytree(REPO_ROOT / "properties_examples" / "handler", tmp_path / "handler")
    shared = ["--name", "words", "--instance", CPU.name, "--image", IMAGE, "--role", ROLE]

    def deploy(*more: str) -> tuple[int, str]:
        arguments = ["deploy", str(folder), *shared, "--model-data", f"file://{folder}/", *more]
        result = CliRunner().invoke(main, arguments)
        return result.exit_code, result.output

    assert deploy()[0] == 0
    assert deploy("--diff") == (0, "no differences\n")
    file = folder / "serving.properties"
    file.write_text(file.read_text().replace("option.language=en", "option.language=fr"))
    assert deploy("--diff") == (1, "variant AllTraffic\n  OPTION_LANGUAGE: en -> fr\n")


@pytest.mark.usefixtures("aws")
def test_the_commands_of_the_docs_page(
    platform: FakeLab, s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the commands of docs/deploying.md: create, compare, and split the traffic."""
    for folder, size in (("llama-3-8b-config", 32), ("batch-16", 16), ("batch-64", 64)):
        write_properties(tmp_path / folder, "engine=MPI", f"option.max_rolling_batch_size={size}")
    prefix = "my-bucket/models/llama-3-8b"
    s3.objects |= {f"{prefix}/config.json": b"{}", f"{prefix}/model.safetensors": bytes(1000)}
    monkeypatch.chdir(tmp_path)

    def run(command: str) -> str:
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
        return result.output

    create, compare, split = (
        one.text
        for one in commands()
        if one.text.startswith("lmi deploy ") and not one.text.endswith("--dry-run")
    )
    run(create)
    assert batch_sizes(platform) == ["32"]
    assert run(compare) == "no differences\n"
    platform.sagemaker.delete_endpoint(EndpointName="my-endpoint")
    run(split)
    described = platform.sagemaker.describe_endpoint(EndpointName="my-endpoint")
    shares = {one["VariantName"]: one["CurrentWeight"] for one in described["ProductionVariants"]}
    assert shares == {"small-batches": 9.0, "large-batches": 1.0}
    assert batch_sizes(platform) == ["16", "64"]
