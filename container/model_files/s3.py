"""`s3://bucket/prefix`: a model in S3, fetched into the cache. boto3 is imported only when something is fetched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from container.launch import environment
from container.model_files import fetch
from container.model_files.base import ModelNotAvailable
from container.model_files.no_weights import as_wanted, copy_name
from container.progress import ProgressView
from lmi_server.config import ModelSource

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)
"""Wider than today's rule: old buckets and other servers have capitals, underscores and longer names."""
_MAX_PREFIX_BYTES = 1024


@dataclass(frozen=True, slots=True)
class S3Address:
    """A folder of a bucket."""

    bucket: str
    prefix: str
    """Ends in `/`, or is empty for the bucket itself."""

    @property
    def name(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def parse(model_id: str) -> S3Address:
    """`s3://bucket/prefix`, with or without a slash at its end. Raises `ModelNotAvailable`."""
    bucket, _, prefix = model_id.removeprefix(SCHEME).partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise ModelNotAvailable(
            f"option.model_id={model_id!r}: {bucket!r} is not the name of a bucket; accepted: s3://bucket/prefix"
        )
    if not prefix.isprintable() or len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise ModelNotAvailable(
            f"option.model_id={model_id[:200]!r}: a prefix has at most {_MAX_PREFIX_BYTES} bytes and no control "
            "characters"
        )
    return S3Address(bucket, f"{prefix}/" if prefix else "")


class S3Models:
    """Models in S3, or in any server that speaks its API (`AWS_ENDPOINT_URL`)."""

    def owns(self, source: ModelSource) -> bool:
        return source.model_id is not None and source.model_id.startswith(SCHEME)

    def refusal(self, source: ModelSource) -> str | None:
        try:
            parse(source.model_id or "")
        except ModelNotAvailable as error:
            return str(error)
        return None

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        try:
            return fetch.locate(copy_name(parse(source.model_id or "").name, source), cache)
        except ModelNotAvailable:
            return None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        address = parse(source.model_id or "")
        from container.model_files.s3_remote import S3Remote  # half a second, which nobody else should pay

        remote = S3Remote(address, environment(), source.trust_remote_code)
        return fetch.obtain(as_wanted(remote, source), cache, view)
