"""Specifications and planned deployments of endpoints for these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from container.deploy.deployment import ApiCall, Deployment, EndpointSpec, VariantSpec, plan
from container.explain import hardware
from container.explain.hardware import Instance

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/lmi-server:cuda"
ROLE = "arn:aws:iam::123456789012:role/lmi-execution"
MODEL_DATA = "s3://my-bucket/llama/"
GPU = hardware.instance("ml.g5.48xlarge")
CPU = Instance("ml.c7i.4xlarge", "CPU", 1, 16, 0, 0, 1.25e9, "")
GB = 10**9


def write_properties(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "serving.properties").write_text("".join(f"{line}\n" for line in lines), encoding="latin-1")
    return folder


def write_model(folder: Path, *lines: str, num_bytes: int = 16 * GB) -> Path:
    """Write a model folder with a serving.properties and a sparse weights file of this size."""
    write_properties(folder, *lines)
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(num_bytes)
    return folder


def spec(**changes: Any) -> EndpointSpec:
    fields: dict[str, Any] = {
        "name": "chat",
        "image": IMAGE,
        "role": ROLE,
        "instance": GPU,
        "count": 1,
        "model_data": MODEL_DATA,
        "environment": {},
    }
    return EndpointSpec(**{**fields, **changes})


def planned(folder: Path, **changes: Any) -> Deployment:
    """Plan a deployment of one variant."""
    return plan(spec(**changes), [VariantSpec("AllTraffic", folder)])


def parameters(deployment: Deployment, method: str) -> dict[str, Any]:
    """Return the parameters of the only call of a method."""
    (call,) = (call for call in deployment.calls if call.method == method)
    return call.parameters


def variant_of(deployment: Deployment) -> dict[str, Any]:
    (row,) = parameters(deployment, "create_endpoint_config")["ProductionVariants"]
    return row


def variables_of(deployment: Deployment) -> dict[str, Any]:
    environment: dict[str, Any] = parameters(deployment, "create_model")["PrimaryContainer"]["Environment"]
    return environment


def service_model() -> Any:
    """Return botocore's description of SageMaker."""
    return botocore.session.get_session().get_service_model("sagemaker")


def complaints(call: ApiCall, service: Any) -> str:
    """Return the validation errors of botocore, which checks names, types and required fields."""
    name = "".join(word.title() for word in call.method.split("_"))
    report: str = ParamValidator().validate(call.parameters, service.operation_model(name).input_shape)
    return str(report.generate_report())
