"""Fetch one object into one file: parts in parallel, each resumed at the byte where it was interrupted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from container.models.errors import ModelNotAvailable
from container.models.files.journal import PART_BYTES, PartsFile, forget
from container.models.files.remote import RemoteFile, Report
from container.models.files.retry import RetryBudget
from container.models.files.s3.content import ContentCheck
from container.models.files.s3.errors import attempt

THREADS = 8
READ_BYTES = 256 << 10
"""Maximum bytes that an interruption loses, besides the buffers of the connection."""
_MAX_RUN = 8
"""Maximum parts of one request. Requests are long, because each takes some milliseconds of Python."""
_REQUESTS_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object in S3, as listed."""

    client: Any
    """A boto3 client, which is thread-safe."""
    bucket: str
    key: str
    file: RemoteFile
    max_attempts: int | None = None
    """Number of attempts at each request; None: a time limit."""

    @property
    def where(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def new_budget(self) -> RetryBudget:
        return RetryBudget(attempts=self.max_attempts)


def fetch_parts(source: S3Object, target: Path, report: Report, check: ContentCheck | None) -> None:
    """Fetch the object into `target`. Resumes an earlier call, and keeps the received bytes on failure.

    check: informed of every part that this call completes.

    Raises: ModelNotAvailable, OSError.
    """
    with PartsFile(target, source.file.size, source.file.version) as file:
        reader = _Reader(source, file, report, source.new_budget(), check)
        report(sum(file.done))
        queue: SimpleQueue[range] = SimpleQueue()
        runs = list(_runs(file))
        for run in runs:
            queue.put(run)
        try:
            with ThreadPoolExecutor(THREADS, thread_name_prefix="s3") as pool:
                futures = [pool.submit(reader.read_all, queue) for _ in range(min(THREADS, len(runs)))]
                try:
                    for future in as_completed(futures):
                        future.result()
                finally:
                    reader.budget.stop.set()
        except ModelNotAvailable:
            if not any(file.done):
                forget(target)  # nothing to resume
            raise


def _runs(file: PartsFile) -> Iterator[range]:
    """Yield runs of consecutive parts, one request each. Only the first part of a run may have bytes already.

    Runs are short enough that every thread gets several requests.
    """
    parts = file.open_parts()
    most = max(1, min(_MAX_RUN, len(parts) // (THREADS * _REQUESTS_PER_THREAD)))
    run = range(0)
    for part in parts:
        if run and (part != run.stop or file.done[part] or len(run) == most):
            yield run
            run = range(0)
        run = range(run.start if run else part, part + 1)
    if run:
        yield run


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads runs of parts; used by all threads."""

    source: S3Object
    file: PartsFile
    report: Report
    budget: RetryBudget
    check: ContentCheck | None

    def read_all(self, queue: SimpleQueue[range]) -> None:
        """Read one run after the other until the queue is empty or another thread fails."""
        while not self.budget.stop.is_set():
            try:
                run = queue.get_nowait()
            except Empty:
                return
            self._read_run(run)

    def _read_run(self, run: range) -> None:
        """Read every part of the run, and resume after interruptions."""
        attempt(lambda: self._read_on(run), self.budget, self.source.where, lambda: self._done(run))

    def _read_on(self, run: range) -> None:
        while (unread := self._unread(run)) and not self.budget.stop.is_set():
            self._read_range(unread)

    def _unread(self, run: range) -> range:
        """The run without its leading complete parts."""
        num_complete = next(
            (i for i, part in enumerate(run) if self.file.done[part] < self.file.part_size(part)), len(run)
        )
        return run[num_complete:]

    def _done(self, run: range) -> int:
        return sum(self.file.done[part] for part in run)

    def _read_range(self, run: range) -> None:
        """Request and write the missing bytes of the parts. Only the first part may have bytes already."""
        start = run[0] * PART_BYTES + self.file.done[run[0]]
        stop = run[-1] * PART_BYTES + self.file.part_size(run[-1])
        # As a context manager, the body would give a stream that does not raise botocore's errors.
        with closing(open_range(self.source, start, stop)) as body:
            for part in run:
                if not self._read_part(part, body):
                    return

    def _read_part(self, part: int, body: Any) -> bool:
        """Write the missing bytes of a part. Returns False if the response ended early. Raises one of `FAILURES`."""
        start, size = part * PART_BYTES, self.file.part_size(part)
        digest = self.check.begin(start, start + size) if self.check and not self.file.done[part] else None
        while missing := size - self.file.done[part]:
            data = b"" if self.budget.stop.is_set() else body.read(min(READ_BYTES, missing))
            if not data:
                return False
            self.file.append(part, data)
            if digest is not None:
                digest.update(data)
            self.report(len(data))
            self.budget.progress()
        if self.check is not None:
            self.check.mark_written(start, start + size, None if digest is None else digest.digest())
        return True


def open_range(source: S3Object, start: int, stop: int) -> Any:
    """Request the bytes [start, stop) of an object, and return botocore's stream of them.

    Raises: ModelNotAvailable, also if the object has changed since the listing; one of `FAILURES`.
    """
    answer = source.client.get_object(
        Bucket=source.bucket, Key=source.key, Range=f"bytes={start}-{stop - 1}", IfMatch=source.file.version
    )
    try:
        _check(source, answer, start, stop)
    except ModelNotAvailable:
        answer["Body"].close()
        raise
    return answer["Body"]


def _check(source: S3Object, answer: dict[str, Any], start: int, stop: int) -> None:
    """Check that the response has the requested bytes of the listed object. Raises ModelNotAvailable."""
    if answer["ETag"] != source.file.version:
        raise ModelNotAvailable(
            f"{source.where}: the object changed while it was read; restart when the upload is complete"
        )
    size = source.file.size
    content_range = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", str(answer.get("ContentRange", "")))
    if content_range is None:
        if answer["ContentLength"] == size == stop - start:
            return
        raise ModelNotAvailable(
            f"{source.where}: the server does not support HTTP range requests; check AWS_ENDPOINT_URL"
        )
    first, last, total = (int(text) for text in content_range.groups())
    if total != size or first != start or last != stop - 1 or answer["ContentLength"] != stop - start:
        raise ModelNotAvailable(
            f"{source.where}: the object is shorter than listed ({size} bytes listed, the response has bytes "
            f"{first} to {last} of {total} where {start} to {stop - 1} were requested); upload it again"
        )
