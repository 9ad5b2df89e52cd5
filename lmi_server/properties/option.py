"""What one row of the options table says. The rows are in `options*.py`, together in `options.OPTIONS`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from lmi_server.config import LmiConfig
from lmi_server.values.base import Scalar, ValueType


class Status(StrEnum):
    """How far an option is done."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    """Every valid value is accepted with a note: ignoring it changes nothing."""
    REFUSED = "refused"
    """Refused with the reason, but for values of which ignoring changes nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of serving.properties or of LMI's config.properties."""

    name: str
    type: ValueType
    help: str
    status: Status = Status.WORKS
    target: str = ""
    """Field of `LmiConfig` that takes the value, dotted (`options.dtype`); empty where none does."""
    engine: str = "any"
    """`any`, `MPI` or `Python`: whom it concerns."""
    aliases: tuple[str, ...] = ()
    """Other names of the same key."""
    example: str = ""
    """A value that may be given."""
    reason: str = ""
    """Why it is refused, or why ignoring it changes nothing."""
    neutral: tuple[Scalar, ...] = ()
    """Values that change nothing, where the option is refused otherwise."""
    neutral_prefix: str = ""
    """Texts that begin so change nothing either."""
    lmi_default: str = ""
    """LMI's default, for options that no field here takes."""
    secret: bool = False
    """The value is never printed."""

    @property
    def default(self) -> object:
        """The default, read off the configuration's own class; LMI's where no field takes the value."""
        if not self.target:
            return self.lmi_default or None
        config: object = LmiConfig()
        for part in self.target.split("."):
            config = getattr(config, part)
        return config

    def changes_nothing(self, value: Scalar) -> bool:
        """True when this value can be ignored without changing what the server does."""
        if self.status is Status.NO_EFFECT:
            return True
        if self.neutral_prefix and isinstance(value, str) and value.startswith(self.neutral_prefix):
            return True
        return any(value == other and type(value) is type(other) for other in self.neutral)


def refused(
    name: str,
    kind: ValueType,
    reason: str,
    *neutral: Scalar,
    help: str,  # noqa: A002
    lmi_default: str = "",
    engine: str = "any",
    aliases: tuple[str, ...] = (),
    neutral_prefix: str = "",
    secret: bool = False,
) -> Option:
    """A key that is refused, but for the `neutral` values."""
    return Option(
        name,
        kind,
        help,
        status=Status.REFUSED,
        reason=reason,
        neutral=neutral,
        neutral_prefix=neutral_prefix,
        lmi_default=lmi_default,
        engine=engine,
        aliases=aliases,
        secret=secret,
    )


def ignored(name: str, kind: ValueType, reason: str, *, help: str, lmi_default: str = "") -> Option:  # noqa: A002
    """A key of which every valid value changes nothing here."""
    return Option(name, kind, help, status=Status.NO_EFFECT, reason=reason, lmi_default=lmi_default)


def build_config(values: dict[str, Scalar], model_dir: str) -> LmiConfig:
    """A configuration from values by `Option.target`; everything else keeps its default."""
    config = LmiConfig()
    parts: dict[str, dict[str, Scalar]] = {"source": {"model_dir": model_dir}, "options": {}, "server": {}}
    top: dict[str, str] = {}
    for target, value in values.items():
        part, _, name = target.partition(".")
        if name:
            parts[part][name] = value
        else:
            top[part] = str(value)
    return dataclasses.replace(
        config,
        source=dataclasses.replace(config.source, **parts["source"]),  # type: ignore[arg-type]
        options=dataclasses.replace(config.options, **parts["options"]),  # type: ignore[arg-type]
        server=dataclasses.replace(config.server, **parts["server"]),  # type: ignore[arg-type]
        **top,
    )
