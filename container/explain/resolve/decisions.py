"""Decisions for one model on one machine, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from engines.config import BatchConfig, EngineConfig, HandlerEngineConfig
from lmi_server.config import LmiConfig
from lmi_server.values.show import as_option

T = TypeVar("T")


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

    def computed(self, option: str, value: T, why: str) -> T:
        """Record and return the value of an open option."""
        self.values[option] = as_option(value)
        self.origins[option] = f"computed: {why}"
        return value


def batching(config: LmiConfig) -> BatchConfig:
    """The batches of engine=Python, as the options say."""
    options = config.options
    delay = options.max_batch_delay / 1000
    return BatchConfig(options.batch_size, delay, options.job_queue_size, config.server.predict_timeout)
