"""Requests that crashed the generating process, and how often. After that, requests like them are not run again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

import msgspec

from engines.core import Request

_MAX_KNOWN = 1024
MAX_REQUEST_CRASHES = 2
"""Number of crashes after which a running request is blamed. At the last crash the request ran alone."""


class CrashingRequests:
    """The most recent crashing requests, keyed by prompt and parameters.

    The seed is ignored: retries usually change it. Crashes of equal requests count together, because a client may leave
    and send its request again.
    """

    def __init__(self) -> None:
        self._crashes: OrderedDict[bytes, int] = OrderedDict()

    def add(self, request: Request, was_alone: bool) -> bool:
        """Count a crash; return whether the request is to blame. Crashes with other requests count as one."""
        digest = _digest(request)
        crashes = self._crashes.pop(digest, 0)
        self._crashes[digest] = crashes = crashes + 1 if was_alone else max(crashes, 1)
        if len(self._crashes) > _MAX_KNOWN:
            self._crashes.popitem(last=False)
        return was_alone and crashes >= MAX_REQUEST_CRASHES

    def discard(self, request: Request) -> None:
        """Forget the crashes of a request that has completed."""
        if self._crashes:
            self._crashes.pop(_digest(request), None)

    def __contains__(self, request: Request) -> bool:
        """Return whether an equal request is to blame for crashes."""
        return bool(self._crashes) and self._crashes.get(_digest(request), 0) >= MAX_REQUEST_CRASHES


def _digest(request: Request) -> bytes:
    content = msgspec.msgpack.encode((request.prompt_token_ids, replace(request.sampling, seed=0)))
    return hashlib.blake2b(content, digest_size=16).digest()
