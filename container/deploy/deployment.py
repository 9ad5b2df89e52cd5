"""The boto3 calls that create an endpoint: one model for each variant, an endpoint configuration, and the endpoint.

The names of models and of the configuration end in a digest of their content, including digests of secrets. A changed
deployment therefore gets new names, and an update can be rolled back to the old models and configuration. What did not
change keeps its name; an existing model or configuration with that name is reused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from container.deploy import CannotDeploy, variables
from container.deploy.variables import ShellSecret, Value
from container.explain import hardware
from container.explain.check import check
from container.explain.hardware import Instance, NoSuchHardwareError
from container.explain.prediction.memory import gigabytes
from container.explain.prediction.startup import (
    HOST_IMAGE,
    MAX_TIMEOUT,
    StartPrediction,
    health_check_timeout,
    platform_timeout,
    start_from_files,
    volume_gb,
)
from container.explain.target import instance_target
from container.models import files as model_files
from container.models.errors import ModelNotAvailable
from container.models.files.bundled import BUNDLED_MODEL
from lmi_server.config import LmiConfig, ModelSource
from lmi_server.properties.loader import examine
from lmi_server.properties.problems import PropertiesError

NAMED_BY_CONTENT = ("create_model", "create_endpoint_config")
"""Calls whose resource can be reused if it exists: its name ends in a digest of its content."""
ALREADY_EXISTS = "already existing"
"""Part of SageMaker's message if the name of a new resource is in use."""
_NAME = r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"
_MAX_NAME = 63
_PROVISION_SECONDS = 900
"""Time for SageMaker to provision instances and to pull the image."""
_RETAINED = {"DesiredInstanceCount": "InitialInstanceCount", "DesiredWeight": "InitialVariantWeight"}
"""Properties of variants that an update can retain, and their fields in the configuration."""
_POLL_SECONDS = 5
_LEAST_VOLUME_GB = 30
"""Size of a small model's volume, so that it is not smaller than SageMaker's default."""


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """A requested production variant."""

    name: str
    path: Path
    """A serving.properties file or a folder that contains one."""
    weight: float | None = None
    """Share of the traffic; None keeps that of a running variant, and is 1 for a new one."""


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """A requested endpoint: the settings that all its variants share."""

    name: str
    image: str
    role: str
    instance: Instance
    count: int | None
    """Number of instances of each variant; None keeps that of a running variant, and is 1 for a new one."""
    model_data: str | None
    """The S3 prefix that SageMaker copies to `/opt/ml/model`; None if the container fetches `option.model_id`.

    `lmi endpoint` also accepts a `file://` address.
    """
    environment: Mapping[str, Value]
    """Environment variables besides those of the serving.properties."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A method of boto3's SageMaker client and its arguments, in which secrets are `ShellSecret`."""

    method: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The calls that create or update an endpoint, in order, and how to wait for it."""

    endpoint: str
    calls: tuple[ApiCall, ...]
    waiter: dict[str, int]
    """`WaiterConfig` of `endpoint_in_service`."""
    notes: tuple[str, ...]

    @property
    def secrets(self) -> list[str]:
        """Variables of the user's shell that the calls contain."""
        models = [call.parameters["PrimaryContainer"] for call in self.calls if call.method == "create_model"]
        values = [value for model in models for value in model["Environment"].values()]
        return sorted({value.variable for value in values if isinstance(value, ShellSecret)})

    @property
    def config_name(self) -> str:
        """Name of the endpoint's configuration once the endpoint is deployed."""
        name: str = self.calls[-1].parameters["EndpointConfigName"]
        return name

    @property
    def retained_fields(self) -> list[str]:
        """Fields of the configuration that an update does not apply to variants that are running."""
        parameters = self.calls[-1].parameters
        if not parameters.get("RetainAllVariantProperties"):
            return []
        excluded = [
            one["VariantPropertyType"] for one in parameters.get("ExcludeRetainedVariantProperties", ())
        ]
        return [field for kind, field in _RETAINED.items() if kind not in excluded]


def plan(endpoint: EndpointSpec, variants: Sequence[VariantSpec], update: bool = False) -> Deployment:
    """Plan a new endpoint, or with `update` a change of a running one. May list the model's files in S3 or on the Hub.

    A variant that the instance cannot serve is refused, as far as the files on this disk show it.

    Raises: PropertiesError, CannotDeploy.
    """
    _validate(endpoint, variants)
    calls, rows, notes = [], [], []
    for variant in variants:
        config, environment = _settings(variant, endpoint)
        source = _source(config, endpoint)
        start, note = _start(source, endpoint)
        notes += [f"variant {variant.name}: {text}" for text in (note, *_check(variant, source, endpoint))]
        model = _model(endpoint, environment)
        model_name = _name_with_digest(f"{endpoint.name}-{variant.name}", model)
        calls.append(ApiCall("create_model", {"ModelName": model_name, **model}))
        loading_timeout = config.options.model_loading_timeout
        rows.append(_production_variant(endpoint, variant, model_name, start, loading_timeout))
    if endpoint.model_data:
        notes.append(f"a serving.properties under {endpoint.model_data} takes precedence over these settings")
    config_name = _name_with_digest(endpoint.name, rows)
    names = {"EndpointName": endpoint.name, "EndpointConfigName": config_name}
    retained = _retained(endpoint, variants) if update else {}
    calls += [
        ApiCall("create_endpoint_config", {"EndpointConfigName": config_name, "ProductionVariants": rows}),
        ApiCall("update_endpoint" if update else "create_endpoint", {**names, **retained}),
    ]
    longest = max(sum(row[name] for name in row if name.endswith("TimeoutInSeconds")) for row in rows)
    waiter = {
        "Delay": _POLL_SECONDS,
        "MaxAttempts": math.ceil((_PROVISION_SECONDS + longest) / _POLL_SECONDS),
    }
    return Deployment(endpoint.name, tuple(calls), waiter, tuple(dict.fromkeys(notes)))


def _retained(endpoint: EndpointSpec, variants: Sequence[VariantSpec]) -> dict[str, Any]:
    """Return the parameters of `update_endpoint` that keep the instance counts and weights that are not given."""
    given = {
        "DesiredInstanceCount": endpoint.count is not None,
        "DesiredWeight": any(variant.weight is not None for variant in variants),
    }
    excluded = [{"VariantPropertyType": kind} for kind, is_given in given.items() if is_given]
    if len(excluded) == len(given):
        return {}
    return {
        "RetainAllVariantProperties": True,
        **({"ExcludeRetainedVariantProperties": excluded} if excluded else {}),
    }


def _settings(variant: VariantSpec, endpoint: EndpointSpec) -> tuple[LmiConfig, dict[str, Value]]:
    """Return the configuration of a variant, and the environment variables that pass it to the container."""
    found = examine(variant.path, _environ(endpoint))
    if found.loaded is None:
        raise PropertiesError(tuple(found.problems))
    config = found.loaded.config
    from_file = variables.from_file(found.entries)
    if endpoint.model_data is not None:
        from_file.pop(variables.MODEL_ID, None)  # a place on this machine
    # The file overrides the other variables, as in a container.
    environment: dict[str, Value] = {**endpoint.environment, **from_file}
    variables.require_short(environment)
    if endpoint.model_data is not None:
        return config, environment
    if config.handler is not None or config.formatter is not None:
        raise CannotDeploy(
            f"{found.folder} contains Python files of a handler; upload it to S3 and set --model-data to its prefix"
        )
    source = config.source
    if not model_files.is_fetched(source) and source.model_id != BUNDLED_MODEL:
        raise CannotDeploy(
            f"the endpoint cannot read the model folder {source.local_path}; upload it to S3 and set"
            " --model-data to its prefix, or set option.model_id to an S3 URI (s3://...) or a Hub id"
        )
    return config, environment


def _environ(endpoint: EndpointSpec) -> dict[str, str]:
    return {name: str(value) for name, value in endpoint.environment.items()}


def _source(config: LmiConfig, endpoint: EndpointSpec) -> ModelSource:
    """Return the location of the model: that of the configuration if it is on this disk, else --model-data."""
    if endpoint.model_data is not None and model_files.locate(config.source) is None:
        return replace(config.source, model_id=endpoint.model_data.removeprefix("file://"))
    return config.source


def _check(variant: VariantSpec, source: ModelSource, endpoint: EndpointSpec) -> tuple[str, ...]:
    """Check a variant for the instance. Returns notes for users. Raises: CannotDeploy."""
    instance, environ = endpoint.instance.name, _environ(endpoint)
    try:
        target = instance_target(instance)
    except NoSuchHardwareError as error:
        return (f"not checked for the instance: {error}",)
    report = check(variant.path, environ, target, source=source)
    if report.reasons:
        reasons = "; ".join(report.reasons)
        raise CannotDeploy(f"variant {variant.name}: {instance} cannot serve {variant.path}: {reasons}")
    unknown = f"whether {instance} can serve the model is unknown; `lmi check` finds out with --instance and --remote"
    return (*report.warnings, *([unknown] if report.unknown else []))


def _start(source: ModelSource, endpoint: EndpointSpec) -> tuple[StartPrediction | None, str]:
    """Predict the start of a variant, None if the size of its model is unknown. Also returns a note for users."""
    try:
        start = start_from_files(model_files.size(source), endpoint.instance.network)
    except ModelNotAvailable as error:
        return None, f"the size of the model is unknown, so the timeouts are set to the maximum: {error}"
    download, load = math.ceil(start.download_seconds or 0.0), math.ceil(start.load_seconds)
    size = gigabytes(start.file_bytes)
    return (start, f"the model's files have {size}; predicted: {download} s to download and {load} s to load")


def _model(endpoint: EndpointSpec, environment: Mapping[str, Value]) -> dict[str, Any]:
    """Return the parameters of `create_model` except the name."""
    container: dict[str, Any] = {"Image": endpoint.image}
    if endpoint.model_data is not None:
        source = {"S3Uri": endpoint.model_data, "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}
    container["Environment"] = dict(sorted(environment.items()))
    return {"ExecutionRoleArn": endpoint.role, "PrimaryContainer": container}


def _production_variant(
    endpoint: EndpointSpec,
    variant: VariantSpec,
    model_name: str,
    start: StartPrediction | None,
    loading_timeout: float,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "VariantName": variant.name,
        "ModelName": model_name,
        "InstanceType": endpoint.instance.name,
        "InitialInstanceCount": endpoint.count or 1,
        "InitialVariantWeight": 1.0 if variant.weight is None else variant.weight,
    }
    download, health = MAX_TIMEOUT, MAX_TIMEOUT
    if start is not None:
        fetch = start.download_seconds or 0.0
        own = fetch if endpoint.model_data is None else 0.0
        download, health = (
            platform_timeout(fetch),
            health_check_timeout(own, start.load_seconds, loading_timeout),
        )
    if endpoint.model_data is not None:
        row["ModelDataDownloadTimeoutInSeconds"] = download
    row["ContainerStartupHealthCheckTimeoutInSeconds"] = health
    if hardware.device(endpoint.instance.device).compute_capability:
        row["InferenceAmiVersion"] = HOST_IMAGE
    if start is not None and endpoint.instance.takes_volume:
        row["VolumeSizeInGB"] = max(_LEAST_VOLUME_GB, volume_gb(start.file_bytes))
    return row


def _name_with_digest(name: str, content: Any) -> str:
    """Return the name with a digest of the content. Secrets in the content are digests. Raises: CannotDeploy."""
    text = json.dumps(content, sort_keys=True, default=repr)
    full = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if len(full) > _MAX_NAME:
        raise CannotDeploy(
            f"--name: the model name {full} is too long; allowed: at most {_MAX_NAME} characters"
        )
    return full


def _validate(endpoint: EndpointSpec, variants: Sequence[VariantSpec]) -> None:
    """Check for errors that SageMaker would report only later, or not at all. Raises: CannotDeploy."""
    if reason := hardware.image_obstacle(hardware.device(endpoint.instance.device)):
        raise CannotDeploy(f"--instance {endpoint.instance.name}: {reason}")
    names = [variant.name for variant in variants]
    for option, name in [("--name", endpoint.name), *(("--variant", name) for name in names)]:
        if not re.fullmatch(_NAME, name):
            raise CannotDeploy(
                f"{option}: not a SageMaker name (got {name!r}); allowed: letters and digits, with hyphens between"
            )
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise CannotDeploy(
            f"--variant: {', '.join(sorted(duplicates))} is repeated; variant names must be unique"
        )
    prefix = endpoint.model_data
    if prefix is not None and not re.fullmatch(r"(s3://[^/]+|file://)/(.+/)?", prefix):
        raise CannotDeploy(
            f"--model-data: not an S3 prefix (got {prefix!r}); allowed: s3://bucket/prefix/, or file:///path/"
            " for lmi endpoint, with a trailing slash"
        )
