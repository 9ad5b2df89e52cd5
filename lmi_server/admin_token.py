"""The token of `/admin`. Web processes know only its digest."""

from __future__ import annotations

import hashlib
import hmac


def token_digest(token: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def is_token(token: str, digest: str) -> bool:
    """Whether `digest` is that of `token`, compared in constant time."""
    return hmac.compare_digest(token_digest(token), digest)
