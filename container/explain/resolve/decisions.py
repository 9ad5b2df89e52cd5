"""Decisions for one model on one machine, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.config import EngineConfig, HandlerEngineConfig


class CannotServe(Exception):
    """This configuration cannot be served here; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything decided."""

    config: EngineConfig
    """Of each copy."""
    notes: tuple[str, ...]
    origins: dict[str, str]
    """How each open value was decided (`computed: ...`), by option name; values from the file have no entry."""
    values: dict[str, str]
    """Each decided value as written in a file, by option name."""
    kv_capacity_tokens: int | None
    """Capacity of the KV cache in tokens; None on a GPU, where it is known after loading, and under engine=Python."""
    copies: int = 1
    """Engines with this configuration."""
    formatter: HandlerEngineConfig | None = None
    """The processes that run a user's formatters."""


@dataclass(slots=True)
class Decisions:
    """Notes and decisions collected during one `resolve`."""

    notes: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def computed(self, option: str, value: object, why: str) -> None:
        self.values[option] = str(value)
        self.origins[option] = f"computed: {why}"
