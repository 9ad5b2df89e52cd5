"""Execution of a deployment with botocore's Stubber."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from container.deploy import CannotDeploy
from container.deploy.deployment import Deployment
from container.deploy.execute import execute
from container.deploy.variables import ShellSecret, with_secrets
from tests.container.deploy.endpoints import planned, write_model

SHELL = {"HF_TOKEN": "hf_abc"}
RESPONSES = {
    "create_model": {"ModelArn": "arn:aws:sagemaker:us-east-1:123456789012:model/any"},
    "create_endpoint_config": {
        "EndpointConfigArn": "arn:aws:sagemaker:us-east-1:123456789012:endpoint-config/any"
    },
    "create_endpoint": {"EndpointArn": "arn:aws:sagemaker:us-east-1:123456789012:endpoint/any"},
}


@pytest.fixture(scope="module")
def client() -> Any:
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    return boto3.client("sagemaker", region_name="us-east-1", **keys)


@pytest.fixture
def stub(client: Any) -> Iterator[Stubber]:
    with Stubber(client) as stubber:
        yield stubber


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return planned(write_model(tmp_path), environment={"HF_TOKEN": ShellSecret("HF_TOKEN")})


def expect(stub: Stubber, deployment: Deployment, *methods: str) -> None:
    for call in deployment.calls:
        if call.method in methods:
            stub.add_response(call.method, RESPONSES[call.method], with_secrets(call.parameters, SHELL))


def expect_describe(stub: Stubber, status: str, config: str = "any", **more: str) -> None:
    timestamp = "2026-01-01T00:00:00Z"
    response = {
        "EndpointName": "chat",
        "EndpointStatus": status,
        "EndpointConfigName": config,
        **more,
        "EndpointArn": RESPONSES["create_endpoint"]["EndpointArn"],
        "CreationTime": timestamp,
        "LastModifiedTime": timestamp,
    }
    stub.add_response("describe_endpoint", response, {"EndpointName": "chat"})


def test_the_calls_are_made_in_order_with_their_secrets(
    deployment: Deployment, client: Any, stub: Stubber
) -> None:
    expect(stub, deployment, *RESPONSES)
    for _ in ("the waiter", "the comparison"):
        expect_describe(stub, "InService", deployment.config_name)
    messages: list[str] = []
    execute(deployment, client, SHELL, messages.append)
    stub.assert_no_pending_responses()
    assert messages[-1] == "chat is in service"
    assert "hf_abc" not in " ".join(messages)


def test_a_failed_call_rolls_back_the_previous_calls(
    deployment: Deployment, client: Any, stub: Stubber
) -> None:
    expect(stub, deployment, "create_model", "create_endpoint_config")
    stub.add_client_error("create_endpoint", "ResourceLimitExceeded", "no ml.g5.48xlarge is left")
    names = {key: value for call in deployment.calls for key, value in call.parameters.items()}
    for method, key in (("delete_endpoint_config", "EndpointConfigName"), ("delete_model", "ModelName")):
        stub.add_response(method, {}, {key: names[key]})
    with pytest.raises(CannotDeploy, match=r"create_endpoint: .*no ml\.g5\.48xlarge is left"):
        execute(deployment, client, SHELL, lambda line: None)
    stub.assert_no_pending_responses()


def test_a_failed_rollback_is_reported(deployment: Deployment, client: Any, stub: Stubber) -> None:
    expect(stub, deployment, "create_model")
    stub.add_client_error("create_endpoint_config", "ValidationException", "bad")
    stub.add_client_error("delete_model", "AccessDenied", "may not")
    messages: list[str] = []
    with pytest.raises(CannotDeploy, match=r"create_endpoint_config: .*bad"):
        execute(deployment, client, SHELL, messages.append)
    assert any(line.startswith("warning: delete_model: ") and "may not" in line for line in messages)


def test_a_failed_endpoint_is_kept_and_its_reason_reported(
    deployment: Deployment, client: Any, stub: Stubber
) -> None:
    expect(stub, deployment, *RESPONSES)
    expect_describe(stub, "Failed", FailureReason="the container did not pass the ping health check")
    with pytest.raises(CannotDeploy, match="chat is not in service: the container did not pass"):
        execute(deployment, client, SHELL, lambda line: None)
    stub.assert_no_pending_responses()


def test_a_failed_describe_call_is_an_error(deployment: Deployment, client: Any, stub: Stubber) -> None:
    expect(stub, deployment, *RESPONSES)
    expect_describe(stub, "InService")
    stub.add_client_error("describe_endpoint", "AccessDenied", "may not")
    with pytest.raises(CannotDeploy, match=r"describe_endpoint: .*may not"):
        execute(deployment, client, SHELL, lambda line: None)


def test_a_missing_secret_is_an_error_before_the_first_call(
    deployment: Deployment, client: Any, stub: Stubber
) -> None:
    with pytest.raises(CannotDeploy, match="HF_TOKEN: not set in this shell"):
        execute(deployment, client, {}, lambda line: None)
