"""Deployments carried out on `lmi endpoint`: by `lmi deploy`'s own calls, and by the program that it prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from container.deploy import differences
from container.deploy.deployment import Deployment, VariantSpec, plan
from container.deploy.execute import execute
from container.deploy.script import as_script
from container.deploy.variables import ShellSecret
from tests.container.deploy.endpoints import spec, write_model
from tests.container.endpoint.fake_containers import FakeContainers
from tests.support.endpoints import EndpointLab, FakeLauncher, lab

SHELL = {"HF_TOKEN": "hf_abc"}


@pytest.fixture
def containers() -> FakeContainers:
    return FakeContainers()


@pytest.fixture
def platform(containers: FakeContainers) -> Iterator[EndpointLab]:
    with lab(FakeLauncher(containers)) as running:
        yield running


def deployment(folder: Path, size: int, update: bool = False) -> Deployment:
    """Two variants, nine to one; the platform's copy of the model is a folder of this machine."""
    model = write_model(folder / "model", num_bytes=1000)
    variants = []
    for name, weight, batch in (("A", 9.0, size), ("B", 1.0, 2 * size)):
        path = folder / f"{name}{size}"
        write_model(path, f"option.max_rolling_batch_size={batch}", num_bytes=1000)
        variants.append(VariantSpec(name, path, weight))
    secrets = {"HF_TOKEN": ShellSecret("HF_TOKEN")}
    planned = plan(spec(model_data=f"file://{model}/", environment=secrets), variants, update)
    return dataclasses.replace(planned, waiter={"Delay": 1, "MaxAttempts": 200})


def batch_sizes(containers: FakeContainers) -> list[str]:
    return [one.environment["OPTION_MAX_ROLLING_BATCH_SIZE"] for one in containers.all if not one.ended]


def test_an_endpoint_is_created_compared_and_updated(
    platform: EndpointLab, containers: FakeContainers, tmp_path: Path
) -> None:
    first = deployment(tmp_path, 8)
    execute(first, platform.sagemaker, SHELL, lambda line: None)
    assert sorted(batch_sizes(containers)) == ["16", "8"]
    assert containers.all[0].environment["HF_TOKEN"] == SHELL["HF_TOKEN"]
    for variant in "AB":
        reply = platform.runtime.invoke_endpoint(EndpointName="chat", TargetVariant=variant, Body=b"{}")
        assert reply["InvokedProductionVariant"] == variant
    found = differences.running("chat", platform.sagemaker)
    assert list(differences.differences(found, differences.planned(first, SHELL))) == []
    second = deployment(tmp_path, 32, update=True)
    changes = list(differences.differences(found, differences.planned(second, SHELL)))
    assert "  option.max_rolling_batch_size: 8 -> 32" in changes
    execute(second, platform.sagemaker, SHELL, lambda line: None)
    platform.wait("InService", name="chat")
    assert sorted(batch_sizes(containers)) == ["32", "64"]


def test_the_program_creates_the_endpoint(
    platform: EndpointLab, containers: FakeContainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SHELL["HF_TOKEN"])
    monkeypatch.setattr(boto3, "client", lambda service: platform.sagemaker)
    program = as_script(deployment(tmp_path, 8))
    exec(compile(program, "deploy.py", "exec"), {})  # noqa: S102
    assert sorted(batch_sizes(containers)) == ["16", "8"]
