"""What is decided for one model on one machine, and how each decision came about."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.config import EngineConfig


class CannotServe(Exception):
    """This configuration cannot be served here; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything decided."""

    config: EngineConfig
    notes: tuple[str, ...]
    origins: dict[str, str]
    """By option name: how an open value was decided (`computed: ...`); given values have no entry."""
    values: dict[str, str]
    """By option name: the value that was decided, as one would write it in the file."""
    kv_capacity_tokens: int | None
    """Tokens that the KV cache holds; None where only the loaded GPU can say, and under engine=Python."""


@dataclass(slots=True)
class Decisions:
    """Notes and origins as they are made. Mutated by the functions of this package during one `resolve`."""

    notes: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def computed(self, option: str, value: object, why: str) -> None:
        self.values[option] = str(value)
        self.origins[option] = f"computed: {why}"
