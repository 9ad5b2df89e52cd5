"""Results of the peer's process. Does not import the peer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

REQUEST_COUNTS = (256, 128, 64, 32, 16, 8)
"""Numbers of requests to choose from. The peer runs the largest that is expected to finish in time. Our engine runs all
of them, and is compared on as many requests as the peer finished."""


@dataclass(frozen=True, slots=True)
class PeerRun:
    num_tokens: int
    seconds: float
    done: bool
    """False: the deadline passed. Only tokens of finished requests are counted."""

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(slots=True)
class Findings:
    pilots: dict[str, float] = field(default_factory=dict)
    """Tokens/s of a short run, by flags."""
    errors: dict[str, str] = field(default_factory=dict)
    """Errors of failed short runs, by flags."""
    flags: str = ""
    """Flags of the run itself."""
    num_requests: int = 0
    """Requests of the run itself; 0: it did not start."""
    run: PeerRun | None = None

    @classmethod
    def read(cls, file: Path) -> Findings:
        values = json.loads(file.read_text(encoding="utf-8"))
        return cls(**values | {"run": values["run"] and PeerRun(**values["run"])})

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
