"""The admin token that `/admin` requires. Web processes hold only the digest of the token."""

from __future__ import annotations

import hashlib
import hmac


def token_digest(token: str) -> str:
    """Return the SHA-256 digest of a token as hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def token_matches(token: str, digest: str) -> bool:
    """Return True if `digest` is the digest of `token`. The comparison takes constant time."""
    return hmac.compare_digest(token_digest(token), digest)
