"""`Option`, a row of the options table, and `OptionValue`, the value that takes effect for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from lmi_server.config import LmiConfig
from lmi_server.properties.problems import Problem, Source
from lmi_server.values.base import Scalar, ValueType
from lmi_server.values.show import as_option

_PARTS = ("source", "options", "server")
"""Fields of `LmiConfig` that are dataclasses with one field for each option."""
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
"""Path in `LmiConfig` of each field, by option name without `option.`."""


class Status(StrEnum):
    """Level of support for an option."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    """Every valid value is accepted with a note, because ignoring it changes nothing."""
    REFUSED = "refused"
    """Values are rejected with the reason, except values that change nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of serving.properties or of LMI's config.properties."""

    name: str
    type: ValueType
    help: str
    status: Status = Status.WORKS
    engine: str = "any"
    """Engine that uses the option: `any`, `MPI` or `Python`."""
    aliases: tuple[str, ...] = ()
    """Other names of the same key."""
    example: str = ""
    """Example of a valid value."""
    reason: str = ""
    """Why values are rejected, or why ignoring them changes nothing."""
    neutral: tuple[Scalar, ...] = ()
    """Accepted values of a rejected option, which change nothing."""
    default_text: str = ""
    """Default in words, where that of the field does not say it; LMI's default if there is no field."""
    secret: bool = False
    """Whether the value must never be printed."""
    group: str = ""
    """Heading of the table under which the option is listed."""

    @property
    def target(self) -> str:
        """Dotted path of the option's field in `LmiConfig` (`options.dtype`). Empty if there is none."""
        return _TARGETS.get(self.name.removeprefix("option."), "") if self.status is Status.WORKS else ""

    @property
    def default(self) -> object:
        """Default of the option's field, or LMI's default if there is no field."""
        if not self.target:
            return self.default_text or None
        config: object = LmiConfig()
        for part in self.target.split("."):
            config = getattr(config, part)
        return config


@dataclass(frozen=True, slots=True)
class OptionValue:
    """The value that takes effect for an option, and its source. `str()` is `key=value` as the user wrote it."""

    option: Option
    value: Scalar
    text: str
    source: Source
    written_key: str
    """Key as the user wrote it, possibly an alias."""

    @property
    def place(self) -> str:
        return str(self.source)

    def __str__(self) -> str:
        return f"{self.written_key}={self.text}"

    def problem(self, reason: str, accepted: str = "") -> Problem:
        return Problem(self.source, self.written_key, self.text, reason, accepted)


def build_config(values: Iterable[OptionValue], engine: str, model_dir: str) -> LmiConfig:
    """Create a configuration from the values that have a field. All other fields keep their defaults."""
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
    """Return the accepted values of a rejected option, as they would be written in a file."""
    return " or ".join(map(as_option, option.neutral))
