"""Carry out a deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from container.deploy import CannotDeploy
from container.deploy.deployment import ALREADY_EXISTS, NAMED_BY_CONTENT, ApiCall, Deployment
from container.deploy.variables import redact, with_secrets

_NOT_FOUND = "Could not find"
"""Part of SageMaker's message about an endpoint that does not exist."""
_UNDO = {
    "create_model": ("delete_model", "ModelName"),
    "create_endpoint_config": ("delete_endpoint_config", "EndpointConfigName"),
}


def execute(
    deployment: Deployment, sagemaker: Any, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Make the calls and wait until the endpoint is in service. If a call fails, earlier calls are undone.

    Models and configurations that exist already are reused, and not deleted if a later call fails. A call for the
    endpoint may fail although it was accepted: its answer was lost and boto3 sent it again, or another deployment made
    it first. The configuration is in use then, and nothing is undone.

    sagemaker: boto3's client. Raises: CannotDeploy, also when SageMaker rolls an update back.
    """
    calls = [ApiCall(call.method, with_secrets(call.parameters, environ)) for call in deployment.calls]
    completed: list[ApiCall] = []
    for call in calls:
        say(f"{call.method}: {next(iter(call.parameters.values()))}")
        try:
            getattr(sagemaker, call.method)(**call.parameters)
        except (ClientError, BotoCoreError) as error:
            if _can_be_reused(call, error):
                say(f"{call.method}: exists, reused")
                continue
            found = _describe(deployment.endpoint, sagemaker) if call is calls[-1] else {}
            if _is_accepted(deployment, found):
                say(f"{call.method}: accepted already")
                break
            _undo(completed, sagemaker, say)
            # SageMaker quotes values that it refuses.
            reason = redact(str(error), deployment.secrets, environ)
            advice = _advice(call, error, deployment.endpoint, found)
            raise CannotDeploy(f"{call.method}: {reason}{advice}") from error
        completed.append(call)
    say(f"waiting until {deployment.endpoint} is in service")
    waiter = sagemaker.get_waiter("endpoint_in_service")
    try:
        waiter.wait(EndpointName=deployment.endpoint, WaiterConfig=deployment.waiter)
        found = sagemaker.describe_endpoint(EndpointName=deployment.endpoint)
    except WaiterError as error:
        reason = error.last_response.get("FailureReason") or error
        advice = _to_replace(deployment.endpoint) if _has_failed(error.last_response) else ""
        raise CannotDeploy(f"{deployment.endpoint} is not in service: {reason}{advice}") from error
    except (ClientError, BotoCoreError) as error:
        raise CannotDeploy(f"describe_endpoint: {error}") from error
    if (config := found["EndpointConfigName"]) != deployment.config_name:
        reason = found.get("FailureReason", "SageMaker gave no reason")
        raise CannotDeploy(
            f"{deployment.endpoint} was not updated and is still in service with {config}: {reason}"
        )
    say(f"{deployment.endpoint} is in service")


def _can_be_reused(call: ApiCall, error: Exception) -> bool:
    """Whether the call failed only because the same model or configuration exists already."""
    if call.method not in NAMED_BY_CONTENT or not isinstance(error, ClientError):
        return False
    found = error.response.get("Error", {})
    return found.get("Code") == "ValidationException" and ALREADY_EXISTS in found.get("Message", "")


def _describe(endpoint: str, sagemaker: Any) -> Mapping[str, Any]:
    """Return an endpoint as SageMaker describes it; nothing if that fails, such as if there is none."""
    try:
        found: Mapping[str, Any] = sagemaker.describe_endpoint(EndpointName=endpoint)
    except (ClientError, BotoCoreError):
        return {}
    return found


def _is_accepted(deployment: Deployment, found: Mapping[str, Any]) -> bool:
    """Whether SageMaker creates or updates the endpoint as planned. found: the endpoint as SageMaker describes it."""
    if found.get("EndpointStatus") in ("Deleting", "Failed"):
        return False
    configs = [found.get("PendingDeploymentSummary", {}).get("EndpointConfigName")]
    if deployment.calls[-1].method == "create_endpoint":
        configs.append(found.get("EndpointConfigName"))
    return deployment.config_name in configs


def _advice(call: ApiCall, error: Exception, endpoint: str, found: Mapping[str, Any]) -> str:
    """Return what to do if the endpoint exists but should not, or the other way around; otherwise an empty text.

    found: the endpoint as SageMaker describes it.
    """
    message = error.response.get("Error", {}).get("Message", "") if isinstance(error, ClientError) else ""
    if call.method == "update_endpoint" and _NOT_FOUND in message:
        return "; leave out --update to create it"
    if _has_failed(found):
        return _to_replace(endpoint)
    if found.get("EndpointStatus") == "Deleting":
        return "; the endpoint is being deleted: deploy again when it is gone"
    exists = call.method == "create_endpoint" and ALREADY_EXISTS in message
    return "; use --update to change it" if exists else ""


def _has_failed(endpoint: Mapping[str, Any]) -> bool:
    """Whether an endpoint, as SageMaker describes it, can only be deleted."""
    return endpoint.get("EndpointStatus") == "Failed"


def _to_replace(endpoint: str) -> str:
    return f"; delete the failed endpoint first: aws sagemaker delete-endpoint --endpoint-name {endpoint}"


def _undo(completed: list[ApiCall], sagemaker: Any, say: Callable[[str], None]) -> None:
    for call in reversed(completed):
        method, key = _UNDO[call.method]
        say(f"{method}: {call.parameters[key]}")
        try:
            getattr(sagemaker, method)(**{key: call.parameters[key]})
        except (ClientError, BotoCoreError) as error:
            say(f"warning: {method}: {error}")
