"""A serving.properties as the environment variables of an endpoint's container.

The variables are those that the server itself reads (`lmi_server/properties/environment.py`), so the endpoint needs no
serving.properties beside its model.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from container.deploy import CannotDeploy
from lmi_server.properties.environment import variables_of
from lmi_server.properties.grammar import Entry
from lmi_server.properties.options import by_name

MODEL_ID = "OPTION_MODEL_ID"
_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
_MAX_CHARS = 1024
"""SageMaker's limit for the value of a variable."""


@dataclass(frozen=True, slots=True)
class ShellSecret:
    """A secret: the value of a variable in the environment of the user who deploys. It is never printed."""

    variable: str
    digest: str = field(default="", compare=False)
    """Digest of the value, which shows changes. It is slow to compute, so that testing guesses is expensive."""
    length: int = field(default=0, compare=False, repr=False)
    """Number of characters of the value."""

    @classmethod
    def of(cls, variable: str, value: str) -> ShellSecret:
        digest = hashlib.scrypt(os.fsencode(value), salt=variable.encode(), n=1 << 14, r=8, p=1, dklen=16)
        return cls(variable, digest.hex(), len(value))

    def __str__(self) -> str:
        return "***"


Value = str | ShellSecret


def is_secret(variable: str) -> bool:
    """Whether a variable may hold a password or an access token, judged by its name."""
    return _SECRET.search(variable) is not None


def from_file(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the variables of a file's settings. The last entry of a repeated key counts. Raises: CannotDeploy."""
    found = {}
    for entry in {entry.key: entry for entry in entries}.values():
        variable = _variable(entry)
        if is_secret(variable):
            raise CannotDeploy(
                f"line {entry.line}: {entry.key} may be a secret; remove the line, set {variable} in this shell and"
                f" pass --env {variable}"
            )
        found[variable] = entry.value
    return found


def from_command_line(words: Iterable[str], environ: Mapping[str, str]) -> dict[str, Value]:
    """Parse `--env NAME=VALUE` and `--env NAME`, which takes the value from `environ`. Raises: CannotDeploy."""
    found: dict[str, Value] = {}
    for word in words:
        name, has_value, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise CannotDeploy(f"--env: not a valid variable name (got {name!r})")
        if is_secret(name) and has_value:
            raise CannotDeploy(
                f"--env {name}: secrets are not accepted on the command line; set {name} in this shell instead"
            )
        if not has_value and name not in environ:
            remedy = "export it first" if is_secret(name) else f"export it, or pass {name}=VALUE"
            raise CannotDeploy(f"--env {name}: not set in this shell; {remedy}")
        value = value if has_value else environ[name]
        found[name] = ShellSecret.of(name, value) if is_secret(name) else value
    return found


def require_short(variables: Mapping[str, Value]) -> None:
    """Check SageMaker's limit for the values of variables. Raises: CannotDeploy."""
    for name, value in variables.items():
        if isinstance(value, ShellSecret):
            length, remedy = value.length, ""
        else:
            length, remedy = len(value), "; set it in a serving.properties next to the model's files instead"
        if length > _MAX_CHARS:
            raise CannotDeploy(
                f"{name}: value too long; allowed: at most {_MAX_CHARS} characters (got {length}){remedy}"
            )


def with_secrets(value: Any, environ: Mapping[str, str]) -> Any:
    """Return the parameters of a call, with secrets replaced by their values. Raises: CannotDeploy."""
    match value:
        case ShellSecret(variable):
            if variable not in environ:
                raise CannotDeploy(f"{variable}: not set in this shell; export it first")
            return environ[variable]
        case dict():
            return {name: with_secrets(item, environ) for name, item in value.items()}
        case list():
            return [with_secrets(item, environ) for item in value]
    return value


def redact(text: str, names: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return a text with the values of secrets replaced by `***`."""
    for value in filter(None, map(environ.get, names)):
        text = text.replace(value, "***")
    return text


def _variable(entry: Entry) -> str:
    """Return the environment variable that sets the key of an entry. Raises: CannotDeploy."""
    option = by_name().get(entry.key)
    key = option.name if option else entry.key
    for variable in variables_of(key):
        if variable.startswith(("OPTION_", "SERVING_")):
            return variable
    if key.startswith("option.") and re.fullmatch(r"\w+", key.removeprefix("option."), re.ASCII):
        return f"OPTION_{key.removeprefix('option.')}"
    raise CannotDeploy(
        f"line {entry.line}: {entry.key} has no environment variable; set it in a serving.properties next to the"
        " model's files instead"
    )
