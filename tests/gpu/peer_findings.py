"""What the peer's process says of its runs. Imports nothing of the peer's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PeerRun:
    num_tokens: int
    seconds: float
    done: bool
    """False: time was over; tokens are those of the requests that had ended."""

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(slots=True)
class Findings:
    pilots: dict[str, float] = field(default_factory=dict)
    """Tokens/s of a short run with each of the flags."""
    errors: dict[str, str] = field(default_factory=dict)
    """Of flags with which it does not run."""
    flags: str = ""
    """With which it ran."""
    num_requests: int = 0
    """0: it did not come to that."""
    run: PeerRun | None = None

    @classmethod
    def read(cls, file: Path) -> Findings:
        values = json.loads(file.read_text(encoding="utf-8"))
        return cls(**values | {"run": values["run"] and PeerRun(**values["run"])})

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
