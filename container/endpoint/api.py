"""What both APIs of the platform share: errors as AWS sends them, and the check of parameters by botocore's data."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.validate import ParamValidator, ValidationErrors
from werkzeug.datastructures import Headers

CONTROL = "sagemaker"
RUNTIME = "sagemaker-runtime"
ACCOUNT = "000000000000"
REGION = "local"
_INVALID = {CONTROL: "ValidationException", RUNTIME: "ValidationError"}
"""The name that each service has for an invalid request."""
_UNCHECKED_PATTERNS = {"S3ModelUri"}
"""Models may also come from a local folder."""


class ApiError(Exception):
    """An error for the client. boto3 raises its typed exception from `kind`, or from the status where it is empty."""

    def __init__(self, kind: str, message: str, status: int = 400, **fields: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.fields = fields

    def body(self) -> dict[str, object]:
        """The JSON body, for both protocols."""
        kind = {"__type": self.kind} if self.kind else {}
        return {**kind, "Message": str(self), **self.fields}


def refused(message: str) -> ApiError:
    """A request that the control plane does not accept."""
    return ApiError(_INVALID[CONTROL], message)


def runtime_refused(message: str) -> ApiError:
    """A request that the runtime does not accept."""
    return ApiError(_INVALID[RUNTIME], message)


def arn(kind: str, name: str) -> str:
    """The resource name of a `model`, an `endpoint-config` or an `endpoint`."""
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}/{name.lower()}"


class Service:
    """One service as botocore describes it. Its data is the one that boto3 makes its clients from."""

    def __init__(self, name: str) -> None:
        self._invalid = _INVALID[name]
        self._model = _service_model(name)

    def check(self, operation: str, params: Mapping[str, Any]) -> None:
        """Check the input of an operation by its shape. Raises ApiError."""
        validator = _Validator()
        report = validator.validate(params, self._model.operation_model(operation).input_shape)
        problems = [*([report.generate_report()] if report.has_errors() else []), *validator.problems]
        if problems:
            raise ApiError(self._invalid, f"validation error detected: {'; '.join(problems)}")

    def header_names(self, operation: str) -> dict[str, str]:
        """The parameters of an operation that are headers: {parameter: header}."""
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
    """botocore's, and the limits that its clients leave to the service: largest values, enumerations, patterns."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def _validate(self, params: Any, shape: Shape, errors: ValidationErrors, name: str) -> None:
        super()._validate(params, shape, errors, name)
        if problem := _beyond(params, shape):
            where = name.removeprefix(".")
            self.problems.append(
                f"Value {str(params)[:200]!r} at {where!r} failed to satisfy constraint: {problem}"
            )


def _beyond(value: Any, shape: Shape) -> str:
    """The limit that a value exceeds; empty where it keeps all."""
    limits = shape.metadata
    if isinstance(value, str) and shape.type_name == "string":
        if "enum" in limits and value not in limits["enum"]:
            near = difflib.get_close_matches(value, limits["enum"], 3) or limits["enum"][:5]
            return f"Member must satisfy enum value set: [{', '.join(near)}, ...]"
        pattern = limits.get("pattern", "")
        # Patterns are Java's; those with classes that Python does not have are left out.
        known = pattern and "\\p" not in pattern and shape.name not in _UNCHECKED_PATTERNS
        if known and not re.fullmatch(pattern, value):
            return f"Member must satisfy regular expression pattern: {pattern}"
    most = limits.get("max")
    size = len(value) if isinstance(value, str | list | dict) else value
    if most is not None and isinstance(size, int | float) and size > most:
        return f"Member must be at most {most}, in value or length"
    return ""
