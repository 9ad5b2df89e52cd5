"""Ranges of S3 objects read straight into memory: the weights of a model with `option.load_format=stream`.

Requests are conditional on the object's ETag. A range is verified by its length only: no checksum covers a range.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from pathlib import Path

from container.models.files.retry import ThrottleWaits
from container.models.files.s3.errors import attempt
from container.models.files.s3.manifest import read_manifest
from container.models.files.s3.parts import READ_BYTES, THREADS, S3Object, open_range
from container.models.files.s3.remote import connect, max_attempts
from container.run.launch import environment
from engines.models.byte_ranges import ByteRanges

_logger = logging.getLogger(__name__)


def read_range(source: S3Object, start: int, out: memoryview) -> None:
    """Fill `out` with an object's bytes from `start` on, and resume after interruptions.

    Raises: ModelNotAvailable.
    """
    budget = source.new_budget()
    done = 0

    def read_on() -> None:
        nonlocal done
        while done < len(out):
            with closing(open_range(source, start + done, start + len(out))) as body:
                # urllib3 returns only when the buffer is full, and copies all of it.
                while count := body.readinto(out[done : done + READ_BYTES]):
                    done += count
                    budget.progress()

    attempt(read_on, budget, source.where, lambda: done)


class S3Ranges(ByteRanges):
    """The weights that a folder's manifest names. Endpoint and credentials come from the environment."""

    num_threads = THREADS
    block_bytes = 8 << 20

    def __init__(self, folder: Path) -> None:
        """Read the folder's manifest. Raises: ValueError, OSError: the folder has no usable manifest."""
        self._address, files = read_manifest(folder)
        self._files = {file.path: file for file in files}
        self._client = connect(environment())
        self._max_attempts = max_attempts(environment())

    def read(self, file: str, offset: int, out: memoryview) -> None:
        listed = self._files[file]
        key = f"{self._address.prefix}{file}"
        source = S3Object(self._client, self._address.bucket, key, listed, self._max_attempts)
        ThrottleWaits(_logger.warning).run(partial(read_range, source, offset, out))

    def close(self) -> None:
        self._client.close()
