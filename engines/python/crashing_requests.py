"""Requests that crashed the generating process. Requests like them are not run again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

import msgspec

from engines.core import Request

_MAX_KNOWN = 1024


class CrashingRequests:
    """The latest of these requests, by prompt and parameters. The seed is ignored: retries usually change it."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def add(self, request: Request) -> None:
        self._known[_digest(request)] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def __contains__(self, request: Request) -> bool:
        return bool(self._known) and _digest(request) in self._known


def _digest(request: Request) -> bytes:
    content = msgspec.msgpack.encode((request.prompt_token_ids, replace(request.sampling, seed=0)))
    return hashlib.blake2b(content, digest_size=16).digest()
