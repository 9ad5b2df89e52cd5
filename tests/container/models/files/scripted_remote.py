"""A remote with files in memory, for tests of fetching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from container.models.errors import DamagedContent
from container.models.files import choice
from container.models.files.remote import RemoteFile, Report, Verification
from tests.support.model_folders import safetensors_bytes

WEIGHTS = safetensors_bytes(["a"], 10_000)
MODEL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
SHARDS = {
    "config.json": b"{}",
    choice.INDEX: b'{"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}}',
    "m1.safetensors": safetensors_bytes(["a"], 10_000),
    "m2.safetensors": safetensors_bytes(["b"], 10_000),
}
BY_SHA256 = Verification("sha256")
FILES = "test://model: 3 files (config.json, ...)"


@dataclass
class ScriptedRemote:
    """A remote with files in memory, which resumes files.

    `break_at` maps paths to errors raised after half of the file is written.
    """

    files: dict[str, bytes] = field(default_factory=lambda: dict(MODEL))
    name: str = "test://model"
    listing_error: Exception | None = None
    break_at: dict[str, Exception] = field(default_factory=dict)
    verify_errors: dict[str, Exception] = field(default_factory=dict)
    verification: Verification = BY_SHA256
    fetched: list[str] = field(default_factory=list)
    num_bytes: int = 0
    """Number of bytes sent."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        if self.listing_error is not None:
            raise self.listing_error
        return tuple(
            RemoteFile(path, len(content), str(hash(content))) for path, content in self.files.items()
        )

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        self.fetched.append(file.path)
        content, error = self.files[file.path], self.break_at.get(file.path)
        begin = target.stat().st_size if target.exists() else 0
        end = len(content) // 2 if error else len(content)
        with target.open("ab") as out:
            out.write(content[begin:end])
        self.num_bytes += end - begin
        report(end)
        if error:
            raise error
        return self.verification

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        if error := self.verify_errors.get(file.path):
            raise error
        if self.verification.by and path.read_bytes() != self.files[file.path]:
            raise DamagedContent(f"{self.name} {file.path}: sha256 differs")
        return self.verification


class Obtained(NamedTuple):
    folder: Path
    log: str


Obtain = Callable[[ScriptedRemote], Obtained]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def unfinished_fetches(cache: Path) -> list[str]:
    aside = cache / "models" / ".remote"
    return sorted(path.name for path in aside.glob("*.part")) if aside.exists() else []
