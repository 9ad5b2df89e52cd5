"""Records of the code under test. pytest's plugin `logging` is off, because it scans all loggers six times a test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Logs(logging.Handler):
    """Everything logged while the fixture `logs` is in use, with debug messages."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno == logging.WARNING]

    @property
    def text(self) -> str:
        """All messages, with tracebacks."""
        return "\n".join(map(self.format, self.records))


@contextmanager
def capture_logs() -> Iterator[Logs]:
    root = logging.getLogger()
    level = root.level
    logs = Logs()
    root.addHandler(logs)
    root.setLevel(logging.DEBUG)
    try:
        yield logs
    finally:
        root.removeHandler(logs)
        root.setLevel(level)
