"""Compare a deployment with a running endpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from container.deploy import CannotDeploy
from container.deploy.deployment import Deployment
from container.deploy.variables import is_secret, with_secrets
from lmi_server.properties.environment import read
from lmi_server.properties.loader import examine
from lmi_server.properties.option import Status
from lmi_server.properties.options import OPTIONS, by_name
from lmi_server.values.show import as_option, masked, one_line

_UNSET = "(not set)"
_EMPTY = "(none)"
_NOT_COMPARED = ("ModelName", "VariantName", "ContainerHostname", "Mode", "ETag", "ManifestEtag")
"""Fields that are not compared: names, and fields that SageMaker adds."""
_SUMMARY = {"CurrentWeight": "InitialVariantWeight", "CurrentInstanceCount": "InitialInstanceCount"}
"""Fields of a running variant that may have changed since its creation, and their names in the configuration."""

VariantValues = dict[str, dict[str, str]]
"""Effective values as text, by the variant's name and the value's name."""


def planned_values(deployment: Deployment, environ: Mapping[str, str]) -> VariantValues:
    """Return the effective values of a deployment. Raises: CannotDeploy if a secret is not in `environ`."""
    calls = [(call.method, with_secrets(call.parameters, environ)) for call in deployment.calls]
    models = {one["ModelName"]: one for method, one in calls if method == "create_model"}
    (config,) = (one for method, one in calls if method == "create_endpoint_config")
    return {
        row["VariantName"]: _values(row, models[row["ModelName"]]) for row in config["ProductionVariants"]
    }


def running_values(endpoint: str, sagemaker: Any) -> VariantValues:
    """Return the effective values of an existing endpoint. Raises: CannotDeploy."""
    values = {}
    try:
        found = sagemaker.describe_endpoint(EndpointName=endpoint)
        config = sagemaker.describe_endpoint_config(EndpointConfigName=found["EndpointConfigName"])
        summaries = {row["VariantName"]: row for row in found.get("ProductionVariants", ())}
        for row in config["ProductionVariants"]:
            if "ModelName" not in row:
                raise CannotDeploy(
                    f"{endpoint}: variant {row['VariantName']} has no model: inference components are not supported"
                )
            model = sagemaker.describe_model(ModelName=row["ModelName"])
            summary = summaries.get(row["VariantName"], {})
            now = {name: summary[key] for key, name in _SUMMARY.items() if key in summary}
            values[row["VariantName"]] = _values({**row, **now}, model)
    except (ClientError, BotoCoreError) as error:
        raise CannotDeploy(f"{endpoint}: {error}") from error
    return values


def differences(before: VariantValues, after: VariantValues, retained: Collection[str] = ()) -> Iterator[str]:
    """Yield the differences as lines for people; none if nothing differs.

    retained: names of values that the update does not change.
    """
    for variant in sorted(before.keys() | after.keys()):
        if variant not in after:
            yield f"variant {variant}: running, will be removed"
        elif variant not in before:
            yield f"variant {variant}: will be added"
        else:
            old, new = before[variant], after[variant]
            names = (old.keys() | new.keys()).difference(retained)
            changed = sorted(name for name in names if old.get(name) != new.get(name))
            if changed:
                yield f"variant {variant}"
            for name in changed:
                yield f"  {name}: {_display_value(name, old.get(name))} -> {_display_value(name, new.get(name))}"


def _display_value(name: str, value: str | None) -> str:
    if value is None:
        return _UNSET
    if not value:
        return _EMPTY
    return "*** (different value)" if is_secret(name) and "." not in name else one_line(value)


def _values(row: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a variant and of its model, and the options and other variables of its container."""
    container = model.get("PrimaryContainer") or model["Containers"][0]
    fields = {**row, **container, "ExecutionRoleArn": model.get("ExecutionRoleArn", "")}
    environment: dict[str, str] = fields.pop("Environment", {})
    settings = {one.source.variable for one in read(environment, Path()).settings if one.key in by_name()}
    others = {name: value for name, value in environment.items() if name not in settings}
    return {**dict(_flat(fields)), **_options(environment), **others}


def _flat(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the innermost fields. Their own names are clear without those of the enclosing structures."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif name not in _NOT_COMPARED:
            yield name, as_option(value)


def _options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the effective value of every option under these environment variables."""
    with tempfile.TemporaryDirectory() as folder:
        found = examine(Path(folder), environment, lenient=True)
    values = {option.name: as_option(option.default) for option in OPTIONS if option.status is Status.WORKS}
    for name, item in found.values.items():
        values[name] = masked(name, as_option(item.value), item.option.secret)
    return values
