"""A deployment as a Python program that makes the same calls."""

from __future__ import annotations

import json
from typing import Any

from container.deploy.deployment import ALREADY_EXISTS, NAMED_BY_CONTENT, ApiCall, Deployment
from container.deploy.variables import ShellSecret

_WIDTH = 88
_INDENT = "    "
_UNLIMITED_WIDTH = 1 << 30
"""Line width at which nothing is folded."""


def as_script(deployment: Deployment, region: str | None = None) -> str:
    """Return the program. It reads secrets from its environment. region: None if boto3 must find it there, too."""
    secrets = deployment.secrets
    needs = "boto3 and AWS credentials" if region else "boto3, AWS credentials and a region"
    lines = [f'"""Deploy {deployment.endpoint} on SageMaker. Needs {needs}.']
    # Three quotes in a note would end the docstring.
    notes = [note.replace("\\", "\\\\").replace('"""', "...") for note in deployment.notes]
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    if secrets:
        lines += ["", f"Secrets are read from the environment: {', '.join(secrets)}."]
        # The names depend on the secrets' current values.
        lines.append("If one changes, print this program again: an existing model keeps the old value.")
    lines += ['"""', "", *(["import os", ""] if secrets else []), "import boto3", ""]
    client = _bracketed("()", [("", "sagemaker"), *([("region_name=", region)] if region else [])], "", 0)
    lines.append(f"sagemaker = boto3.client{client}")
    lines.append(f'exists = "{ALREADY_EXISTS}"  # models and configurations are named by their content')
    for call in deployment.calls:
        lines += _api_call(call)
    wait = {"EndpointName": deployment.endpoint, "WaiterConfig": deployment.waiter}
    lines.append(_call('sagemaker.get_waiter("endpoint_in_service").wait', wait))
    # After a rollback the endpoint is in service, too.
    lines.append(_call("found = sagemaker.describe_endpoint", {"EndpointName": deployment.endpoint}))
    lines.append(f"config = {_source(deployment.config_name, '', 0)}")
    lines.append('if found["EndpointConfigName"] != config:')
    lines.append("    raise SystemExit(f\"not deployed: {found.get('FailureReason')}\")")
    return "\n".join(lines) + "\n"


def _api_call(call: ApiCall) -> list[str]:
    """Return the lines of a call, which tolerate an existing resource if it must be the same."""
    function = f"sagemaker.{call.method}"
    if call.method not in NAMED_BY_CONTENT:
        return [_call(function, call.parameters)]
    return [
        "try:",
        _INDENT + _call(function, call.parameters, _INDENT),
        "except sagemaker.exceptions.ClientError as error:",
        "    if exists not in str(error):",
        "        raise",
    ]


def _call(function: str, arguments: dict[str, Any], indent: str = "") -> str:
    items = [(f"{name}=", value) for name, value in arguments.items()]
    return function + _bracketed("()", items, indent, len(function) - 1)  # no comma follows it


def _source(value: Any, indent: str, before: int) -> str:
    """Return a value as Python source that starts `before` characters after the indent."""
    match value:
        case ShellSecret(variable):
            return f'os.environ["{variable}"]'
        case dict():
            items = [(f"{_source(key, '', 0)}: ", item) for key, item in value.items()]
            return _bracketed("{}", items, indent, before)
        case list():
            return _bracketed("[]", [("", item) for item in value], indent, before)
        case str():
            text = json.dumps(value, ensure_ascii=False)
            if value.count('"') > value.count("'"):
                return "'" + text[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
            return text
    return repr(value)


def _bracketed(brackets: str, items: list[tuple[str, Any]], indent: str, before: int) -> str:
    """Return named items in brackets: on one line if they fit with a trailing comma, else one per line."""
    inline = ", ".join(name + _source(value, "", -_UNLIMITED_WIDTH) for name, value in items)
    if len(indent) + before + len(inline) + 3 <= _WIDTH:
        return f"{brackets[0]}{inline}{brackets[1]}"
    inner = indent + _INDENT
    rows = "".join(f"{inner}{name}{_source(value, inner, len(name))},\n" for name, value in items)
    return f"{brackets[0]}\n{rows}{indent}{brackets[1]}"
