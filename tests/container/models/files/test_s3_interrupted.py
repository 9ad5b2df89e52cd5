"""Transfers from S3 whose connections are lost again and again. The clock is simulated."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.response import StreamingBody
from urllib3 import HTTPResponse

from container.models.files import retry
from container.models.files.remote import RemoteFile
from container.models.files.s3 import parts, ranges
from container.models.files.s3.parts import S3Object

BLOCK_BYTES = 256 << 10
SIZE = 4 << 20
CONNECTION_BYTES = (1 << 20) + 1000
BYTES_PER_SECOND = 64 << 10
"""A connection is older than the time limit without progress when it is lost."""


class Store:
    """A client with one object. Every connection is lost after `CONNECTION_BYTES`."""

    def __init__(self, timeout: float) -> None:
        """timeout: seconds of silence after which a connection is lost; 0: it is closed without silence."""
        self.content = random.Random(1).randbytes(SIZE)
        self.timeout = timeout
        self.now = 1000.0
        self.num_bytes = 0
        self.num_requests = 0

    def get_object(self, Range: str, **_: Any) -> dict[str, Any]:  # noqa: N803  boto3's name
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        self.num_requests += 1
        size = last + 1 - first
        connection = Connection(self, self.content[first : last + 1][:CONNECTION_BYTES], size)
        body = HTTPResponse(connection, {"Content-Length": str(size)}, preload_content=False)
        content_range = f"bytes {first}-{last}/{SIZE}"
        headers = {"ETag": "v1", "ContentRange": content_range, "ContentLength": size}
        return {**headers, "Body": StreamingBody(body, size)}


class Connection(io.BytesIO):
    """A connection that is lost after `content`, unless that is the whole body."""

    def __init__(self, store: Store, content: bytes, size: int) -> None:
        super().__init__(content)
        self._store, self._is_whole = store, len(content) == size

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._store.num_bytes += len(data)
        self._store.now += len(data) / BYTES_PER_SECOND
        if size and len(data) < size and not self._is_whole and self._store.timeout:
            self._store.now += self._store.timeout
            raise TimeoutError
        return data


def into_a_file(source: S3Object, target: Path) -> bytes:
    parts.fetch_parts(source, target, lambda count: None, None)
    return target.read_bytes()


def into_memory(source: S3Object, target: Path) -> bytes:
    out = bytearray(source.file.size)
    ranges.read_range(source, 0, memoryview(out))
    return bytes(out)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("timeout", [0.0, 3.0], ids=["closed", "silent"])
@pytest.mark.parametrize("fetch", [into_a_file, into_memory])
def test_a_lost_connection_loses_at_most_a_block(
    fetch: Callable[[S3Object, Path], bytes], timeout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(timeout)
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: store.now))
    monkeypatch.setattr(retry, "_FIRST_DELAY_SECONDS", 0.001)
    source = S3Object(store, "b", "x", RemoteFile("x", SIZE, "v1"))
    assert fetch(source, tmp_path / "x") == store.content
    assert store.num_requests > 3, "more than the number of failures in a row"
    assert store.num_bytes < SIZE + store.num_requests * BLOCK_BYTES
