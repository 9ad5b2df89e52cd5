"""A deployment as a Python program that makes the same calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from container.deploy.deployment import Deployment
from container.deploy.variables import ShellSecret

_WIDTH = 88
_INDENT = "    "


def as_script(deployment: Deployment) -> str:
    """Write the program. Secrets are read from its environment."""
    secrets = sorted({secret.variable for call in deployment.calls for secret in _secrets(call.parameters)})
    lines = [f'"""Deploy {deployment.endpoint} on SageMaker. Needs boto3, AWS credentials and a region.']
    # A docstring ends at three quotes, wherever they are from.
    notes = [note.replace("\\", "\\\\").replace('"""', "...") for note in deployment.notes]
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    lines += ["", f"Secrets are read from the environment: {', '.join(secrets)}."] if secrets else []
    lines += ['"""', "", *(["import os", ""] if secrets else []), "import boto3", ""]
    lines.append('sagemaker = boto3.client("sagemaker")')
    lines += [_call(f"sagemaker.{call.method}", call.parameters) for call in deployment.calls]
    wait = {"EndpointName": deployment.endpoint, "WaiterConfig": deployment.waiter}
    lines.append(_call('sagemaker.get_waiter("endpoint_in_service").wait', wait))
    return "\n".join(lines) + "\n"


def _secrets(value: Any) -> Iterator[ShellSecret]:
    if isinstance(value, ShellSecret):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _secrets(item)


def _call(function: str, arguments: dict[str, Any]) -> str:
    inline = ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())
    if len(function) + len(inline) + 2 <= _WIDTH:
        return f"{function}({inline})"
    rows = [
        f"{_INDENT}{name}={_fitted(value, _INDENT, len(name) + 1)},\n" for name, value in arguments.items()
    ]
    return f"{function}(\n{''.join(rows)})"


def _fitted(value: Any, indent: str, before: int) -> str:
    """A literal that starts `before` characters after the indent: on one line where it fits, else one item a line."""
    inline = _literal(value)
    if len(indent) + before + len(inline) + 1 <= _WIDTH or not isinstance(value, dict | list):
        return inline
    inner = indent + _INDENT
    if isinstance(value, dict):
        keys = {key: f"{_literal(key)}: " for key in value}
        rows = [f"{inner}{text}{_fitted(value[key], inner, len(text))},\n" for key, text in keys.items()]
        return f"{{\n{''.join(rows)}{indent}}}"
    return f"[\n{''.join(f'{inner}{_fitted(item, inner, 0)},{chr(10)}' for item in value)}{indent}]"


def _literal(value: Any) -> str:
    """A value as Python source on one line."""
    match value:
        case ShellSecret(variable):
            return f'os.environ["{variable}"]'
        case dict():
            return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case str():
            text = json.dumps(value, ensure_ascii=False)
            if value.count('"') > value.count("'"):
                return "'" + text[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
            return text
    return repr(value)
