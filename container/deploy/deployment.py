"""The calls of boto3 that make an endpoint: one model for each variant, a configuration, the endpoint.

Names of models and of the configuration end in a digest of what they say. So a changed deployment gets new ones, and an
update can go back to the old.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.deploy import load_time, variables
from container.deploy.errors import CannotDeploy
from container.deploy.load_time import StartPrediction, TimeLimits
from container.deploy.variables import Value
from container.explain.hardware import Instance
from container.models import files as model_files
from container.models.errors import ModelNotAvailable
from container.models.files.bundled import BUNDLED_MODEL
from lmi_server.config import LmiConfig, ModelSource
from lmi_server.properties.loader import examine
from lmi_server.properties.problems import PropertiesError

CUDA = "13.0"
"""The CUDA version of the image that the Dockerfile builds; it needs an NVIDIA driver of version 580 or later."""
_HOST_IMAGE = "al2023-ami-sagemaker-inference-gpu-4-1"
"""The platform's host image with driver 580; its default hosts have drivers 470 to 550."""
_MAX_NAME = 63
_PROVISION_SECONDS = 900
"""For the platform to find instances and to fetch the image."""
_POLL_SECONDS = 5
_GB = 1e9
_SPARE_VOLUME_GB = 30
_LARGEST_VOLUME_GB = 512


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """A production variant, as it is asked for."""

    name: str
    path: Path
    """A folder with a serving.properties, or such a file."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An endpoint, as it is asked for: what all its variants share."""

    name: str
    image: str
    role: str
    instance: Instance
    count: int
    """Instances of each variant."""
    model_data: str | None
    """The prefix in S3 that the platform copies to `/opt/ml/model`; None: the container fetches `option.model_id`.

    `lmi endpoint` also takes a `file://` address.
    """
    environment: Mapping[str, Value]
    """Variables besides those of the serving.properties."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A method of boto3's SageMaker client and its arguments, in which secrets are `ShellSecret`."""

    method: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that makes an endpoint, in order."""

    endpoint: str
    calls: tuple[ApiCall, ...]
    waiter: dict[str, int]
    """`WaiterConfig` of `endpoint_in_service`."""
    notes: tuple[str, ...]


def plan(endpoint: EndpointSpec, variants: Sequence[VariantSpec], update: bool = False) -> Deployment:
    """Plan an endpoint; `update` replaces one that runs. May list the model's files in S3 or on the Hub.

    Raises: PropertiesError, CannotDeploy.
    """
    _require_names(endpoint, variants)
    calls, rows, notes, seconds = [], [], [], 0
    for variant in variants:
        config, environment = _settings(variant, endpoint)
        size, unknown = _model_bytes(config, endpoint)
        start = None if unknown else load_time.predict(size, endpoint.instance)
        limits = load_time.time_limits(
            start, endpoint.model_data is None, config.options.model_loading_timeout
        )
        notes.append(f"variant {variant.name}: {_predicted(start) if start else unknown}")
        model = _model(endpoint, environment)
        model = {"ModelName": _named(f"{endpoint.name}-{variant.name}", model), **model}
        calls.append(ApiCall("create_model", model))
        rows.append(_production_variant(endpoint, variant, model["ModelName"], limits, size))
        seconds = max(seconds, limits.download + limits.health_check)
    if endpoint.model_data:
        notes.append(f"a serving.properties under {endpoint.model_data} has precedence over these settings")
    config_name = _named(endpoint.name, rows)
    calls += [
        ApiCall("create_endpoint_config", {"EndpointConfigName": config_name, "ProductionVariants": rows}),
        ApiCall(
            "update_endpoint" if update else "create_endpoint",
            {"EndpointName": endpoint.name, "EndpointConfigName": config_name},
        ),
    ]
    attempts = math.ceil((_PROVISION_SECONDS + seconds) / _POLL_SECONDS)
    return Deployment(
        endpoint.name,
        tuple(calls),
        {"Delay": _POLL_SECONDS, "MaxAttempts": attempts},
        tuple(dict.fromkeys(notes)),
    )


def has_nvidia_gpus(instance: Instance) -> bool:
    return instance.device not in ("CPU", "Inferentia2")


def _settings(variant: VariantSpec, endpoint: EndpointSpec) -> tuple[LmiConfig, dict[str, Value]]:
    """The configuration of a variant, and the variables that give it to the container."""
    shown = {name: str(value) for name, value in endpoint.environment.items()}
    found = examine(variant.path, shown)
    if found.loaded is None:
        raise PropertiesError(tuple(found.problems), tuple(found.warnings))
    config = found.loaded.config
    # The file has precedence, as it has in a container.
    environment: dict[str, Value] = {**endpoint.environment, **variables.from_file(found.entries)}
    variables.require_short(environment)
    if endpoint.model_data is not None:
        environment.pop(variables.MODEL_ID, None)
        return config, environment
    if config.handler is not None or config.formatter is not None:
        raise CannotDeploy(
            f"{found.folder} holds Python files of a handler; upload it to S3 and give its prefix by --model-data"
        )
    source = config.source
    if not model_files.is_fetched(source) and source.model_id != BUNDLED_MODEL:
        raise CannotDeploy(
            f"the endpoint cannot read the model folder {source.local_path}; upload it to S3 and give its prefix by"
            " --model-data, or set option.model_id to an s3:// address or a Hub id"
        )
    return config, environment


def _model_bytes(config: LmiConfig, endpoint: EndpointSpec) -> tuple[int, str]:
    """The size of a model's files, or 0 and why it is not known."""
    source = config.source
    if endpoint.model_data is not None and model_files.locate(source) is None:
        source = ModelSource(endpoint.model_data.removeprefix("file://"))
    try:
        return load_time.model_bytes(source), ""
    except ModelNotAvailable as error:
        return 0, f"the model's size is not known, so the time limits are the longest possible: {error}"


def _predicted(start: StartPrediction) -> str:
    return (
        f"the model's files have {start.file_bytes / _GB:.3g} GB; predicted: {math.ceil(start.download_seconds)} s to"
        f" download and {math.ceil(start.load_seconds)} s to load them"
    )


def _model(endpoint: EndpointSpec, environment: Mapping[str, Value]) -> dict[str, Any]:
    """The parameters of `create_model`, but for the name."""
    container: dict[str, Any] = {"Image": endpoint.image}
    if endpoint.model_data is not None:
        container["ModelDataSource"] = {
            "S3DataSource": {
                "S3Uri": endpoint.model_data,
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
            }
        }
    container["Environment"] = dict(sorted(environment.items()))
    return {"ExecutionRoleArn": endpoint.role, "PrimaryContainer": container}


def _production_variant(
    endpoint: EndpointSpec, variant: VariantSpec, model_name: str, limits: TimeLimits, size: int
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "VariantName": variant.name,
        "ModelName": model_name,
        "InstanceType": endpoint.instance.name,
        "InitialInstanceCount": endpoint.count,
        "InitialVariantWeight": variant.weight,
        "ContainerStartupHealthCheckTimeoutInSeconds": limits.health_check,
    }
    if endpoint.model_data is not None:
        row["ModelDataDownloadTimeoutInSeconds"] = limits.download
    if has_nvidia_gpus(endpoint.instance):
        row["InferenceAmiVersion"] = _HOST_IMAGE
    if not endpoint.instance.disk_bytes and size:
        row["VolumeSizeInGB"] = min(math.ceil(size / _GB) + _SPARE_VOLUME_GB, _LARGEST_VOLUME_GB)
    return row


def _named(name: str, content: Any) -> str:
    """The name with a digest of the content. Secrets do not enter it. Raises: CannotDeploy."""
    text = json.dumps(content, sort_keys=True, default=repr)
    full = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if len(full) > _MAX_NAME:
        raise CannotDeploy(
            f"--name: the name {full} of a model has more than {_MAX_NAME} characters; choose a shorter one"
        )
    return full


def _require_names(endpoint: EndpointSpec, variants: Sequence[VariantSpec]) -> None:
    """Check what the platform would report only later, or not at all. Raises: CannotDeploy."""
    names = [variant.name for variant in variants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise CannotDeploy(f"--variant: {', '.join(sorted(twice))} is given twice")
    if endpoint.model_data is not None and not re.fullmatch(
        r"(s3://[^/]+|file://)/(.+/)?", endpoint.model_data
    ):
        raise CannotDeploy(
            f"--model-data: not a prefix that ends in a slash, as s3://bucket/prefix/ (got {endpoint.model_data!r})"
        )
