"""Whose request it is: the engine shares out among tenants and keeps the pages of each to itself.

This is not authentication. Any caller may name any tenant; whoever lets only known callers in does so in front of
this server.
"""

from __future__ import annotations

import hashlib
import re

from werkzeug.datastructures import Headers

from lmi_server.errors import InvalidField

_HEADER = "X-Tenant-Id"
_NAME = re.compile(r"[\x21-\x7e]{1,128}")
_KEY_HEADERS = ("api-key", "x-api-key")
_BEARER = "bearer "


def tenant_of(headers: Headers) -> str:
    """The tenant that the headers name, or else their API key; empty without either.

    A key is told as a hash of it, the same in every web process; the key itself goes no further than here.

    Raises `InvalidField`.
    """
    name = headers.get(_HEADER)
    if name is not None:
        if not _NAME.fullmatch(name):
            raise InvalidField(
                _HEADER,
                f"given {ascii(name)[:80]} of {len(name)} characters; accepted: 1 to 128 visible ASCII characters",
            )
        return f"id:{name}"
    key = _api_key(headers)
    if not key:
        return ""
    return "key:" + hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _api_key(headers: Headers) -> str:
    authorization = headers.get("Authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return next((headers[name].strip() for name in _KEY_HEADERS if headers.get(name)), "")
