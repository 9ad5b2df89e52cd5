"""Configuration of the router, passed by the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from engines.config import JsonConfig

MEMORY_LIMIT = "LMI_MODELS_MEMORY_MB"
"""Environment variable with the memory for all models together, in MiB."""


@dataclass(frozen=True, slots=True)
class RouterConfig(JsonConfig):
    """Configuration of the router's process, passed as a JSON file."""

    folders: dict[str, str]
    """Folders of configured models, by name; empty if the platform loads the models."""
    models_root: str
    """Parent folder of every model that the platform loads."""
    lenient: bool
    allow_remote_code: bool
    max_request_size: int
    """Largest body in bytes that the router accepts: the largest limit of any configured model."""
    throttle_error_http_code: int
    """Status of the router's own replies on `/invocations` when it is overloaded."""
    memory_limit: int | None
    """Bytes for all models together; None means all of the machine's memory."""
    memory_reserved: int
    """Bytes to leave free."""
