"""Versions of the files on a hub, which are also their checksums. Imports huggingface_hub."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from huggingface_hub.hf_api import RepoSibling

from container.models.errors import DamagedContent
from container.models.files.remote import RemoteFile, Verification

_SHA256, _GIT, _SHA1, _ETAG = "sha256", "git", "sha1", "etag"
"""Kinds of versions, which are written `kind:value`. `git` is a git blob id; `sha1` may be one, or the content's sha1,
which some mirrors send as the ETag; `etag` says nothing about the content."""
_HEX_DIGITS = {64: _SHA256, 40: _SHA1}
_NAMES = {_SHA256: "sha256", _GIT: "git blob id", _SHA1: "sha1"}
_BLOCK_BYTES = 1 << 20


def listed_version(sibling: RepoSibling) -> str:
    """Return the version of a file in the listing; without a value if the listing has none."""
    return f"{_SHA256}:{sibling.lfs.sha256}" if sibling.lfs else f"{_GIT}:{sibling.blob_id or ''}"


def etag_version(etag: str) -> str:
    """Return the version of a file by the ETag of its headers."""
    kind = _HEX_DIGITS.get(len(etag)) if re.fullmatch(r"[0-9a-f]+", etag) else None
    return f"{kind or _ETAG}:{etag}"


def verify(name: str, file: RemoteFile, path: Path) -> Verification:
    """Compare the content of `path` with the version of `file`. name: the model's, for messages.

    Raises: DamagedContent, OSError.
    """
    kind, _, expected = file.version.partition(":")
    if kind == _ETAG or not expected:
        return Verification("", "the Hub provides no checksum, only the size")
    found = _digests(kind, file.size, path)
    for digest_name, digest in found.items():
        if digest == expected:
            return Verification(digest_name)
    named = " or ".join(f"{digest_name} is {digest}" for digest_name, digest in found.items())
    raise DamagedContent(f"{name}: {file.path} is damaged: {named}, expected {expected}")


def _digests(kind: str, size: int, path: Path) -> dict[str, str]:
    """Return the digests, by name, of which one must be the version."""
    git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    digests = {
        _SHA256: {_NAMES[_SHA256]: hashlib.sha256()},
        _GIT: {_NAMES[_GIT]: git},
        _SHA1: {_NAMES[_GIT]: git, _NAMES[_SHA1]: hashlib.sha1(usedforsecurity=False)},
    }[kind]
    with path.open("rb") as content:
        while block := content.read(_BLOCK_BYTES):
            for digest in digests.values():
                digest.update(block)
    return {name: digest.hexdigest() for name, digest in digests.items()}
