"""What one row of the options table says, and the value that counts for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from lmi_server.config import LmiConfig
from lmi_server.properties.problems import Source
from lmi_server.values.base import Scalar, ValueType, is_one_of
from lmi_server.values.show import as_option

_PARTS = ("source", "options", "server")
"""Fields of `LmiConfig` that hold fields of their own."""
_TARGETS = {
    "engine": "engine",
    **{
        field.name: f"{part}.{field.name}"
        for part in _PARTS
        for field in dataclasses.fields(getattr(LmiConfig(), part))
    },
    "minWorkers": "options.min_workers",
    "maxWorkers": "options.max_workers",
}
"""Of each name of a field: the path to it."""


class Status(StrEnum):
    """How far an option is done."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    """Every valid value is accepted with a note: ignoring it changes nothing."""
    REFUSED = "refused"
    """Refused with the reason, except for values that change nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of serving.properties or of LMI's config.properties."""

    name: str
    type: ValueType
    help: str
    status: Status = Status.WORKS
    engine: str = "any"
    """`any`, `MPI` or `Python`: the engine that it concerns."""
    aliases: tuple[str, ...] = ()
    """Other names of the same key."""
    example: str = ""
    """A value that may be given."""
    reason: str = ""
    """Why it is refused, or why ignoring it changes nothing."""
    neutral: tuple[Scalar, ...] = ()
    """Values of a refused option that change nothing."""
    lmi_default: str = ""
    """LMI's default, for options that are no field of `LmiConfig`."""
    secret: bool = False
    """The value is never printed."""

    @property
    def target(self) -> str:
        """The field of `LmiConfig` of the same name, dotted (`options.dtype`); empty where there is none."""
        return _TARGETS.get(self.name.removeprefix("option."), "") if self.status is Status.WORKS else ""

    @property
    def default(self) -> object:
        """The default of the field, or LMI's where no field takes the value."""
        if not self.target:
            return self.lmi_default or None
        config: object = LmiConfig()
        for part in self.target.split("."):
            config = getattr(config, part)
        return config

    def changes_nothing(self, value: Scalar) -> bool:
        """Whether this value can be ignored without changing what the server does."""
        return self.status is Status.NO_EFFECT or is_one_of(value, self.neutral)


@dataclass(frozen=True, slots=True)
class OptionValue:
    """The value that counts for an option, and where it was written. As text: `key=value` as the user wrote it."""

    option: Option
    value: Scalar
    text: str
    source: Source
    written: str
    """The key as the user wrote it; may be an alias."""

    @property
    def place(self) -> str:
        return str(self.source)

    def __str__(self) -> str:
        return f"{self.written}={self.text}"


def build_config(values: Iterable[OptionValue], engine: str, model_dir: str) -> LmiConfig:
    """Make a configuration of the values that have a field; every other field keeps its default."""
    parts: dict[str, dict[str, Scalar]] = {"source": {"model_dir": model_dir}, "options": {}, "server": {}}
    for item in values:
        part, _, name = item.option.target.partition(".")
        if name:
            parts[part][name] = item.value
    config = LmiConfig(engine)
    return dataclasses.replace(
        config,
        **{part: dataclasses.replace(getattr(config, part), **fields) for part, fields in parts.items()},
    )


def neutral_text(option: Option) -> str:
    """Return the values of a refused option that change nothing, as one would write them."""
    return " or ".join(map(as_option, option.neutral))
