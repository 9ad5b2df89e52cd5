"""Resolved configuration of one model on one machine, with the reason for each value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from container.errors import UserError
from engines.config import BatchConfig, EngineConfig, HandlerEngineConfig
from lmi_server.config import LmiConfig
from lmi_server.values.show import as_option

T = TypeVar("T")


class CannotServe(UserError):
    """The machine cannot serve this configuration. The message says why and how to fix it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration without open values."""

    config: EngineConfig
    """Configuration of each copy's engine."""
    notes: tuple[str, ...]
    origins: dict[str, str]
    """How each open value was resolved (`computed: ...`), by option name. Values from the file have no entry."""
    values: dict[str, str]
    """Resolved values as written in a file, by option name."""
    kv_capacity_tokens: int | None
    """Capacity of the KV cache in tokens; None on a GPU, where it is known after loading, and under engine=Python."""
    copies: int = 1
    """Number of engines with this configuration."""
    formatter: HandlerEngineConfig | None = None
    """Configuration of the processes that run a user's formatters."""


@dataclass(slots=True)
class Decisions:
    """Notes and decisions collected during one `resolve`."""

    notes: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def record(self, option: str, value: T, why: str) -> T:
        """Record and return the value of an open option."""
        self.values[option] = as_option(value)
        self.origins[option] = f"computed: {why}"
        return value


def batching(config: LmiConfig) -> BatchConfig:
    """Return the batching configuration of engine=Python."""
    options = config.options
    delay = options.max_batch_delay / 1000
    return BatchConfig(options.batch_size, delay, options.job_queue_size, config.server.predict_timeout)
