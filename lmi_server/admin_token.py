"""The token that opens `/admin`. Web processes know no more of it than its digest."""

from __future__ import annotations

import hashlib
import hmac


def token_digest(token: str) -> str:
    """SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def is_token(given: str, digest: str) -> bool:
    """Whether `digest` is that of the token `given`. How long this takes says nothing about either."""
    return hmac.compare_digest(token_digest(given), digest)
