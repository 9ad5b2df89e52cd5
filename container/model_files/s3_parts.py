"""One object into one file: parts in parallel, each read again from the byte where it broke."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from container.model_files.base import ModelNotAvailable
from container.model_files.journal import PART_BYTES, PartsFile, forget
from container.model_files.patience import Patience
from container.model_files.remote import RemoteFile, Report
from container.model_files.s3_errors import FAILURES, may_pass, refused

THREADS = 8
_READ_BYTES = 128 << 10
"""What a break throws away at most, besides what the system holds of the connection."""


@dataclass(frozen=True, slots=True)
class S3Object:
    """What is read."""

    client: Any
    """boto3's; its clients may be used by several threads."""
    bucket: str
    key: str
    file: RemoteFile

    @property
    def where(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


Arrived = Callable[[int, int], None]
"""Called with [start, stop), bytes that are in the file now; from any thread."""


def fetch_parts(source: S3Object, target: Path, report: Report, patience: Patience, arrived: Arrived) -> None:
    """Make `target` the object's bytes; goes on with what an earlier call left, and leaves what came when it fails.

    `arrived` is called for every part that this call completes.

    Raises: ModelNotAvailable, OSError.
    """
    with PartsFile(target, source.file.size, source.file.version) as file:
        try:
            _fetch_into(file, _Reader(source, file, report, patience, arrived))
        except ModelNotAvailable:
            if not any(file.done):
                forget(target)  # nothing came that would be worth going on with
            raise


def _fetch_into(file: PartsFile, reader: _Reader) -> None:
    reader.report(sum(file.done))
    queue: SimpleQueue[int] = SimpleQueue()
    parts = file.open_parts()
    for index in parts:
        queue.put(index)
    reader.patience.progress()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="s3") as pool:
        futures = [pool.submit(reader.read_all, queue) for _ in range(min(THREADS, len(parts)))]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            reader.patience.stop.set()


@dataclass(frozen=True, slots=True)
class _Reader:
    """What each thread does."""

    source: S3Object
    file: PartsFile
    report: Report
    patience: Patience
    arrived: Arrived

    def read_all(self, queue: SimpleQueue[int]) -> None:
        """One part after the other, until there is none left or another thread has failed."""
        while not self.patience.stop.is_set():
            try:
                index = queue.get_nowait()
            except Empty:
                return
            self._read_part(index)

    def _read_part(self, index: int) -> None:
        failures = 0
        while self.file.done[index] < self.file.part_size(index) and not self.patience.stop.is_set():
            began, before = time.monotonic(), self.file.done[index]
            try:
                self._read_range(index)
            except FAILURES as error:
                failures = 1 if self.file.done[index] > before else failures + 1
                if not may_pass(error):
                    raise refused(error, self.source.where) from error
                if not self.patience.again(began, failures) and not self.patience.stop.is_set():
                    raise refused(error, self.source.where) from error
        if self.file.done[index] == self.file.part_size(index):
            self.arrived(index * PART_BYTES, index * PART_BYTES + self.file.part_size(index))

    def _read_range(self, index: int) -> None:
        """Ask for what is missing of a part, and write it as it comes."""
        start = index * PART_BYTES + self.file.done[index]
        stop = index * PART_BYTES + self.file.part_size(index)
        answer = self.source.client.get_object(
            Bucket=self.source.bucket,
            Key=self.source.key,
            Range=f"bytes={start}-{stop - 1}",
            IfMatch=self.source.file.version,
        )
        with closing(
            answer["Body"]
        ) as body:  # as a context manager it gives a stream whose errors are not botocore's
            self._check(answer, start, stop)
            while not self.patience.stop.is_set():
                data = body.read(_READ_BYTES)
                if not data:
                    return
                self.file.append(index, data)
                self.report(len(data))
                self.patience.progress()

    def _check(self, answer: dict[str, Any], start: int, stop: int) -> None:
        """That the bytes that follow are those asked for, of the object that was listed."""
        if answer["ETag"] != self.source.file.version:
            raise ModelNotAvailable(
                f"{self.source.where}: the object changed while it was read; start again when its upload is over"
            )
        size = self.source.file.size
        range_given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", str(answer.get("ContentRange", "")))
        if range_given is None:
            if answer["ContentLength"] == size == stop - start:
                return
            raise ModelNotAvailable(
                f"{self.source.where}: the server does not read ranges as S3 does; look at AWS_ENDPOINT_URL"
            )
        first, last, total = (int(text) for text in range_given.groups())
        if total != size or first != start or last != stop - 1 or answer["ContentLength"] != stop - start:
            raise ModelNotAvailable(
                f"{self.source.where}: the object is shorter than listed ({size} bytes listed, the answer has bytes "
                f"{first} to {last} of {total} where {start} to {stop - 1} were asked for); upload it again"
            )
