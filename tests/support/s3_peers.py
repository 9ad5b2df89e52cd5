"""Other ways to download an S3 prefix: boto3's transfer manager, and ranges in parallel processes, like s5cmd.

    python -m tests.support.s3_peers boto3|boto3-wide|ranges BUCKET PREFIX FOLDER

Each writes the objects of the prefix to the folder and flushes them to disk, without verification.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

_WIDE = 32
_RANGE_BYTES = 50 << 20
_RANGES_AT_ONCE = 5
"""Both are the defaults of s5cmd."""
_READ_BYTES = 1 << 20

Objects = list[tuple[str, int, Path]]
"""(key, size in bytes, target) of each object."""


def _client() -> Any:
    import boto3
    from botocore.config import Config

    config = Config(s3={"addressing_style": "path"}, max_pool_connections=_WIDE)
    return boto3.session.Session().client("s3", config=config, region_name=os.environ["AWS_REGION"])


def _objects(bucket: str, prefix: str, folder: Path) -> Objects:
    listed = _client().list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    return [(entry["Key"], entry["Size"], folder / Path(entry["Key"]).name) for entry in listed]


def transfer(bucket: str, objects: Objects, **settings: int) -> None:
    from boto3.s3.transfer import TransferConfig

    client = _client()
    for key, _, target in objects:
        client.download_file(bucket, key, str(target), Config=TransferConfig(**settings))


def _read_ranges(bucket: str, ranges: list[tuple[str, int, int, Path]]) -> None:
    """Download the ranges [start, stop). Runs in a separate process."""
    client = _client()

    def read(key: str, start: int, stop: int, target: Path) -> None:
        body = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")["Body"]
        file = os.open(target, os.O_WRONLY)
        try:
            while block := body.read(_READ_BYTES):
                start += os.pwrite(file, block, start)
        finally:
            os.close(file)

    with ThreadPoolExecutor(_RANGES_AT_ONCE) as pool:
        for future in [pool.submit(read, *one) for one in ranges]:
            future.result()


def ranges(bucket: str, objects: Objects) -> None:
    found = []
    for key, size, target in objects:
        with target.open("wb") as file:
            file.truncate(size)
        found += [
            (key, start, min(start + _RANGE_BYTES, size), target) for start in range(0, size, _RANGE_BYTES)
        ]
    count = os.cpu_count() or 1
    with ProcessPoolExecutor(count) as pool:
        for future in [pool.submit(_read_ranges, bucket, found[place::count]) for place in range(count)]:
            future.result()


PEERS: dict[str, Callable[[str, Objects], None]] = {
    "boto3": transfer,
    "boto3-wide": partial(transfer, max_concurrency=_WIDE),
    "ranges": ranges,
}

if __name__ == "__main__":
    name, bucket, prefix, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    objects = _objects(bucket, prefix, Path(folder))
    PEERS[name](bucket, objects)
    for *_, path in objects:
        with path.open("rb") as file:
            os.fsync(file)
