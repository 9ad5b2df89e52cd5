"""Specifications and planned deployments of endpoints for these tests, and a client that deploys nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from container.deploy.deployment import Deployment, EndpointSpec, VariantSpec, plan
from container.explain import hardware
from tests.container.explain.questions import SHAPE

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/lmi-server:cuda"
ROLE = "arn:aws:iam::123456789012:role/lmi-execution"
MODEL_DATA = "s3://my-bucket/llama/"
GPU = hardware.instance("ml.g5.48xlarge")
CPU = hardware.instance("ml.c7i.4xlarge")
GB = 10**9
_HEADER_BYTES = 200


def write_properties(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "serving.properties").write_text("".join(f"{line}\n" for line in lines), encoding="latin-1")
    return folder


def write_model(folder: Path, *lines: str, num_bytes: int = 16 * GB) -> Path:
    """Write a small model's folder with a serving.properties and a sparse weights file of this size."""
    write_properties(folder, *lines)
    (folder / "config.json").write_text(
        json.dumps({**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 8})
    )
    (folder / "tokenizer.json").write_text("{}")
    size = num_bytes - _HEADER_BYTES - 8
    header = json.dumps({"weight": {"dtype": "I8", "shape": [size], "data_offsets": [0, size]}})
    with (folder / "model.safetensors").open("wb") as file:
        file.write(_HEADER_BYTES.to_bytes(8, "little") + header.ljust(_HEADER_BYTES).encode())
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


class FakeClient:
    """A SageMaker client that records its calls, some of which fail."""

    def __init__(self, description: dict[str, Any] | None = None, **errors: str) -> None:
        """description: the response of all calls. errors: messages by method."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._description = description or {}
        self._errors = errors

    def __getattr__(self, method: str) -> Any:
        def call(**parameters: Any) -> dict[str, Any]:
            self.calls.append((method, parameters))
            if message := self._errors.get(method):
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, method)
            return self._description

        return call

    def get_waiter(self, name: str) -> Any:
        return SimpleNamespace(wait=getattr(self, name))
