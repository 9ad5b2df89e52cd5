"""Addresses of models in S3: `s3://bucket/prefix`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from container.models.errors import ModelNotAvailable
from lmi_server.values.show import without_secrets

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)
"""Bucket names, more than S3 allows today: old buckets and other servers use capitals, underscores, longer names."""
_MAX_PREFIX_BYTES = 1024


@dataclass(frozen=True, slots=True)
class S3Address:
    """A folder of a bucket."""

    bucket: str
    prefix: str
    """Key prefix that ends in `/`; empty for the bucket itself."""

    @property
    def name(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def parse_address(model_id: str) -> S3Address:
    """Parse `s3://bucket/prefix`, with or without a trailing slash. Raises ModelNotAvailable."""
    bucket, _, prefix = model_id.removeprefix(SCHEME).partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise ModelNotAvailable(
            f"option.model_id={without_secrets(model_id)!r}: {without_secrets(bucket)!r} is not a bucket name; allowed:"
            " s3://bucket/prefix"
        )
    if not prefix.isprintable() or len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise ModelNotAvailable(
            f"option.model_id={model_id[:200]!r}: the prefix is too long or has control characters; allowed: at most"
            f" {_MAX_PREFIX_BYTES} bytes, no control characters"
        )
    return S3Address(bucket, f"{prefix}/" if prefix else "")
