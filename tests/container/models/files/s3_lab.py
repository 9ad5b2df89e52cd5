"""Helpers of the S3 tests: a bucket behind a proxy, and ways to obtain a model from it."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.faulty_proxy import FaultyProxy
from tests.support.seaweed import SECRET_KEY, Seaweed

BUCKET = "models"
"""One bucket for all tests, because the server creates several files for each bucket."""
NOTE_MARK_BYTES = 32
"""Size of the header of a `.written` note. It is followed by 4 bytes for each part."""
WITHOUT_WEIGHTS = {"config.json", "tokenizer.json", "model.py"}
NEEDED = {*WITHOUT_WEIGHTS, "model.safetensors"}
"""Files of the small model that serving needs."""
TINY = {
    *WITHOUT_WEIGHTS,
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}
"""Files of the tiny model that serving needs."""


@dataclass(frozen=True, slots=True)
class S3Lab:
    """The bucket prefix, proxy and cache of one test."""

    seaweed: Seaweed
    proxy: FaultyProxy
    root: str
    """Prefix of all uploads of the test. Ends in `/`."""
    cache: Path
    bucket: str = BUCKET

    def address(self, prefix: str = "mine") -> str:
        return f"s3://{self.bucket}/{self.root}{prefix}"

    def upload(self, folder: Path, prefix: str = "mine/") -> None:
        self.seaweed.upload(folder, self.bucket, f"{self.root}{prefix}")

    def put(self, key: str, body: bytes) -> None:
        self.seaweed.client().put_object(Bucket=self.bucket, Key=f"{self.root}{key}", Body=body)

    def obtain(self, prefix: str = "mine", **options: Any) -> tuple[Path, str]:
        """Obtain a model with these options of `ModelSource`. Return (folder, log)."""
        log = io.StringIO()
        source = ModelSource(self.address(prefix), **options)
        return model_files.obtain(source, LogLines(log), self.cache), log.getvalue()

    def locate(self, prefix: str = "mine", **options: Any) -> Path | None:
        return model_files.locate(ModelSource(self.address(prefix), **options), self.cache)

    def refused(self, prefix: str = "mine", **options: Any) -> str:
        """Return the error. It must be one line without secrets, and nothing may be published."""
        before = self.published()
        with pytest.raises(ModelNotAvailable) as caught:
            self.obtain(prefix, **options)
        message = str(caught.value)
        assert "\n" not in message
        assert SECRET_KEY not in message
        assert self.published() == before
        return message

    def published(self) -> list[str]:
        models = self.cache / "models"
        return sorted(path.name for path in models.glob("*") if not path.name.startswith("."))

    def leftover_files(self) -> list[str]:
        """Return the files in the cache that are neither published nor small notes."""
        aside = self.cache / "models" / ".remote"
        files = [path for path in aside.rglob("*") if path.is_file()] if aside.exists() else []
        return sorted(
            path.name for path in files if path.suffix not in (".lock", ".json") or "part" in str(path)
        )

    def written_bytes(self) -> int:
        """Return the bytes that a running or interrupted fetch has written and recorded."""
        part = next((self.cache / "models" / ".remote").glob("*.part"), None)
        if part is None:
            return 0
        whole = sum(path.stat().st_size for path in part.iterdir() if path.is_file())
        notes = [note for note in part.rglob("*.written") if note.with_suffix("").exists()]
        counts = [note.read_bytes()[NOTE_MARK_BYTES:] for note in notes]
        return whole + sum(done for count in counts for (done,) in struct.iter_unpack("<I", count))


def same(folder: Path, original: Path, names: set[str] = NEEDED) -> bool:
    """Return whether the folder has exactly these files with the same content."""
    if {path.name for path in folder.iterdir()} != names:
        return False
    return all((folder / name).read_bytes() == (original / name).read_bytes() for name in names)
