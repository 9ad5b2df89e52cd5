"""Checks of requests against botocore's service descriptions, and against what `lmi endpoint` supports."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.validate import ParamValidator, ValidationErrors
from werkzeug.datastructures import Headers

from container.endpoint.api import ApiError
from lmi_server.values.show import masked

_REQUIRED = {
    "ProductionVariant": ("ModelName", "; inference components are not supported by lmi endpoint"),
    "AsyncInferenceOutputConfig": ("S3OutputPath", ""),
}
"""By shape: a field that is optional on the platform, and required by `lmi endpoint`, and why."""
_NOT_SUPPORTED = {
    "CreateModelInput": ("InferenceExecutionConfig",),
    "ContainerDefinition": ("ModelPackageName", "AdditionalModelDataSources", "MultiModelConfig"),
    "CreateEndpointConfigInput": ("ExplainerConfig", "DataCaptureConfig", "CrossRegionTrafficConfig"),
    "ProductionVariant": ("ServerlessConfig", "InstancePools", "ManagedInstanceScaling"),
    "InvokeEndpointInput": ("InferenceComponentName", "TargetContainerHostname"),
    "InvokeEndpointWithResponseStreamInput": ("InferenceComponentName", "TargetContainerHostname"),
}
"""By shape: unsupported fields. They are refused, because they would change what an endpoint does."""
_ONLY_SUPPORTED = {"ContainerMode": "SingleModel"}
"""By shape: the only supported value."""
_UNCHECKED_PATTERNS = {"S3ModelUri", "Url"}
"""Shapes with unchecked patterns: models may also come from a local folder."""
_COMPRESSIONS = {"S3Prefix": "None", "S3Object": "Gzip"}
"""The supported compression of each type of model data."""
_SECRETS = ("EnvironmentMap", "EnvironmentValue")
"""Shapes whose values are not quoted in messages."""


class Service:
    """A service, as described by botocore."""

    def __init__(self, name: str, refused: Callable[[str], ApiError]) -> None:
        """refused: creates the error for an invalid request from its message."""
        self._refused = refused
        self._model = _service_model(name)

    def check(self, operation: str, params: Mapping[str, Any]) -> None:
        """Check the input of an operation against its shape. Raises ApiError."""
        validator = _Validator()
        report = validator.validate(params, self._model.operation_model(operation).input_shape)
        problems = [*([report.generate_report()] if report.has_errors() else []), *validator.problems]
        if problems:
            raise self._refused(f"validation error detected: {'; '.join(problems)}")

    def header_names(self, operation: str) -> dict[str, str]:
        """Return the parameters of an operation that are headers: {parameter: header}."""
        members = self._model.operation_model(operation).input_shape.members
        return {
            name: shape.serialization["name"]
            for name, shape in members.items()
            if shape.serialization.get("location") == "header"
        }

    def from_headers(self, operation: str, endpoint: str, headers: Headers) -> dict[str, Any]:
        """Read and check the parameters of an operation from headers. Raises ApiError."""
        members = self._model.operation_model(operation).input_shape.members
        found: dict[str, Any] = {"EndpointName": endpoint}
        for name, header in self.header_names(operation).items():
            if (value := headers.get(header)) is not None:
                is_number = members[name].type_name == "integer" and value.isdecimal()
                found[name] = int(value[:9]) if is_number else value
        self.check(operation, {"Body": b"", **found})
        return found


@functools.cache
def _service_model(name: str) -> ServiceModel:
    return ServiceModel(Loader().load_service_model(name, "service-2"), name)


class _Validator(ParamValidator):
    """botocore's validator, plus limits that its clients leave to the service and those of `lmi endpoint`."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def _validate(self, params: Any, shape: Shape, errors: ValidationErrors, name: str) -> None:
        super()._validate(params, shape, errors, name)
        where = name.removeprefix(".")
        if problem := _violated_constraint(params, shape):
            value = masked("", str(params)[:200], shape.name in _SECRETS)
            self.problems.append(f"Value {value!r} at {where!r} failed to satisfy constraint: {problem}")
        elif params != (only := _ONLY_SUPPORTED.get(shape.name, params)):
            self.problems.append(f"{where}: not supported (got {params}); allowed: {only}")
        if isinstance(params, dict):
            self.problems += _unfit_fields(params, shape.name, f"{where}." if where else "")


def _unfit_fields(params: Mapping[str, Any], shape: str, prefix: str) -> Iterator[str]:
    """Yield messages for missing and unsupported fields."""
    required, reason = _REQUIRED.get(shape, ("", ""))
    if required and required not in params:
        yield f"{prefix}{required}: missing{reason}"
    for field in _NOT_SUPPORTED.get(shape, ()):
        if field in params:
            yield f"{prefix}{field}: not supported by lmi endpoint"
    if shape == "ContainerDefinition" and {"ModelDataUrl", "ModelDataSource"} <= params.keys():
        yield f"{prefix}ModelDataUrl: not allowed beside ModelDataSource"
    if shape == "S3ModelDataSource":
        yield from _unfit_source(params, prefix)


def _unfit_source(source: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield messages for the fields of an S3DataSource that do not fit together."""
    kind, compression, uri = (source.get(name) for name in ("S3DataType", "CompressionType", "S3Uri"))
    if kind not in _COMPRESSIONS or compression not in _COMPRESSIONS.values():
        return  # reported with the shapes of these fields
    if compression != (only := _COMPRESSIONS[kind]):
        yield f"{prefix}CompressionType: not supported with S3DataType={kind} (got {compression}); allowed: {only}"
    elif kind == "S3Prefix" and isinstance(uri, str) and uri.startswith("s3://") and not uri.endswith("/"):
        yield f"{prefix}S3Uri: a key prefix must end with a slash (got {uri})"


def _violated_constraint(value: Any, shape: Shape) -> str:
    """Return the constraint that a value violates; empty if there is none."""
    limits = shape.metadata
    if isinstance(value, str) and shape.type_name == "string":
        if "enum" in limits and value not in limits["enum"]:
            near = difflib.get_close_matches(value, limits["enum"], 3) or limits["enum"][:5]
            return f"Member must satisfy enum value set: [{', '.join(near)}, ...]"
        pattern = limits.get("pattern", "")
        # Patterns have Java's syntax. Those with character classes that Python lacks are not checked.
        known = pattern and "\\p" not in pattern and shape.name not in _UNCHECKED_PATTERNS
        if known and not re.fullmatch(pattern, value):
            return f"Member must satisfy regular expression pattern: {pattern}"
    most = limits.get("max")
    size = len(value) if isinstance(value, str | list | dict) else value
    if most is not None and isinstance(size, int | float) and size > most:
        return f"Member must be at most {most}, in value or length"
    return ""
