"""The file beside the headers of streamed weights that names their objects in S3."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from container.models.files.remote import RemoteFile
from container.models.files.s3.address import S3Address

MANIFEST = "streamed-weights.json"


def manifest_text(address: S3Address, files: Sequence[RemoteFile]) -> str:
    return json.dumps(
        {
            "bucket": address.bucket,
            "prefix": address.prefix,
            "files": [dataclasses.asdict(file) for file in files],
        }
    )


def read_manifest(folder: Path) -> tuple[S3Address, tuple[RemoteFile, ...]]:
    """Read a folder's manifest.

    Raises: OSError, or KeyError, TypeError, ValueError: the file is not the output of `manifest_text`.
    """
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    files = tuple(RemoteFile(**file) for file in content["files"])
    return S3Address(content["bucket"], content["prefix"]), files
