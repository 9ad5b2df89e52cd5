"""The TOML file of `lmi endpoint`: models, configurations, endpoints and alarms, with the fields of boto3's calls."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from container.endpoint.api import ApiError
from container.endpoint.platform import Platform
from container.endpoint.rollout import AlarmRule
from container.errors import UserError

_OPERATIONS = {
    "models": "CreateModel",
    "endpoint_configs": "CreateEndpointConfig",
    "endpoints": "CreateEndpoint",
}


class BadFile(UserError):
    """The file is not valid."""


def read(path: Path) -> Mapping[str, Any]:
    """Read the file. Raises BadFile."""
    try:
        declared = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from error
    unknown = sorted(set(declared) - {*_OPERATIONS, "alarms"})
    if unknown:
        raise BadFile(f"{path}: unknown table {unknown[0]}; allowed: {', '.join([*_OPERATIONS, 'alarms'])}")
    for table in _OPERATIONS:
        if not isinstance(declared.get(table, []), list):
            raise BadFile(
                f"{path}: {table}: not a list of tables; allowed: [[{table}]], with two brackets, once for each entry"
            )
    return declared


def declare(declared: Mapping[str, Any], platform: Platform) -> None:
    """Create the resources that a file declares: models, then configurations, then endpoints. Raises BadFile."""
    where = "alarms"
    try:
        platform.alarms.update(msgspec.convert(declared.get("alarms", {}), dict[str, AlarmRule]))
        for table, operation in _OPERATIONS.items():
            for number, params in enumerate(declared.get(table, ()), 1):
                where = f"{table}, number {number}"
                platform.call(operation, params)
    except (ApiError, msgspec.ValidationError) as error:
        raise BadFile(f"{where}: {error}") from error
