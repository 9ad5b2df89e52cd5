"""Execution of a deployment by a client whose calls fail. See test_on_endpoint for calls that succeed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from container.deploy import CannotDeploy
from container.deploy.deployment import ApiCall, Deployment
from container.deploy.execute import execute
from container.deploy.variables import ShellSecret
from tests.container.deploy.endpoints import FakeClient, planned, write_model

SHELL = {"HF_TOKEN": "hf_abc"}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return planned(write_model(tmp_path), environment={"HF_TOKEN": ShellSecret("HF_TOKEN")})


def test_a_failed_call_rolls_back_the_previous_calls(deployment: Deployment) -> None:
    client = FakeClient(create_endpoint="no ml.g5.48xlarge is left")
    with pytest.raises(CannotDeploy, match=r"create_endpoint: .*no ml\.g5\.48xlarge is left"):
        execute(deployment, client, SHELL, lambda line: None)
    (_, model), (_, config), *_ = client.calls
    assert client.calls[3:] == [
        ("describe_endpoint", {"EndpointName": "chat"}),
        ("delete_endpoint_config", {"EndpointConfigName": config["EndpointConfigName"]}),
        ("delete_model", {"ModelName": model["ModelName"]}),
    ]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("create_endpoint", "Cannot create already existing endpoint"),
        ("update_endpoint", "Cannot update in-progress endpoint"),
    ],
)
def test_a_call_that_was_accepted_although_its_answer_was_lost_is_not_undone(
    method: str, message: str, deployment: Deployment
) -> None:
    """boto3 sends the call again, and the endpoint is already being created or updated."""
    last = ApiCall(method, deployment.calls[-1].parameters)
    deployment = replace(deployment, calls=(*deployment.calls[:-1], last))
    config = {"EndpointConfigName": deployment.config_name}
    pending = {"PendingDeploymentSummary": config} if method == "update_endpoint" else {}
    client = FakeClient({**config, **pending}, **{method: message})
    execute(deployment, client, SHELL, lambda line: None)
    assert client.calls[3:] == [
        ("describe_endpoint", {"EndpointName": "chat"}),
        ("endpoint_in_service", {"EndpointName": "chat", "WaiterConfig": deployment.waiter}),
        ("describe_endpoint", {"EndpointName": "chat"}),
    ]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("Deleting", "the endpoint is being deleted: deploy again when it is gone"),
        ("Failed", "delete the failed endpoint first: aws sagemaker delete-endpoint --endpoint-name chat"),
    ],
)
def test_an_endpoint_that_will_not_be_in_service_does_not_accept_the_call(
    status: str, advice: str, deployment: Deployment
) -> None:
    """An endpoint that was deployed before from the same files has the same configuration."""
    client = FakeClient(
        {"EndpointConfigName": deployment.config_name, "EndpointStatus": status},
        create_endpoint="Cannot create already existing endpoint",
    )
    with pytest.raises(CannotDeploy, match=f"already existing endpoint; {advice}$"):
        execute(deployment, client, SHELL, lambda line: None)
    assert [method for method, _ in client.calls[-2:]] == ["delete_endpoint_config", "delete_model"]


def test_a_failed_rollback_is_reported(deployment: Deployment) -> None:
    messages: list[str] = []
    with pytest.raises(CannotDeploy, match=r"create_endpoint_config: .*bad"):
        execute(
            deployment,
            FakeClient(create_endpoint_config="bad", delete_model="may not"),
            SHELL,
            messages.append,
        )
    assert any(line.startswith("warning: delete_model: ") and "may not" in line for line in messages)


def test_a_failed_describe_call_is_an_error(deployment: Deployment) -> None:
    with pytest.raises(CannotDeploy, match=r"describe_endpoint: .*may not"):
        execute(deployment, FakeClient(describe_endpoint="may not"), SHELL, lambda line: None)


def test_a_missing_secret_is_an_error_before_the_first_call(deployment: Deployment) -> None:
    client = FakeClient()
    with pytest.raises(CannotDeploy, match=r"HF_TOKEN: not set in this shell; export it first$"):
        execute(deployment, client, {}, lambda line: None)
    assert client.calls == []


def test_a_refusal_that_quotes_a_secret_is_reported_without_it(deployment: Deployment) -> None:
    client = FakeClient(create_model="Value '{HF_TOKEN=hf_abc}' failed to satisfy constraint")
    with pytest.raises(CannotDeploy, match=r"create_model: .*'{HF_TOKEN=\*\*\*}' failed to satisfy"):
        execute(deployment, client, SHELL, lambda line: None)
