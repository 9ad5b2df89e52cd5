"""How several models are served, as the supervisor passes it to the front."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """What the front's process needs, passed as a JSON file."""

    folders: dict[str, str]
    """Of the models that are given, by name; empty: the platform loads them."""
    models_root: str
    """Below it is every model that the platform loads."""
    lenient: bool
    allow_remote_code: bool
    max_request_size: int
    memory_limit: int | None
    """Bytes for all models; None: all of the machine."""
    memory_reserved: int
    """Bytes that stay free."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FrontConfig:
        return cls(**json.loads(text))
