"""The tenant of a request. The engine schedules tenants fairly, and tenants share no cached pages.

This is not authentication: any caller may name any tenant. Authenticate callers in front of this server.
"""

from __future__ import annotations

import hashlib
import re

from werkzeug.datastructures import Headers

from lmi_server.errors import InvalidField
from lmi_server.values.show import as_json

_HEADER = "X-Tenant-Id"
_NAME = re.compile(r"[\x21-\x7e]{1,128}")
_KEY_HEADERS = ("api-key", "x-api-key")
_BEARER = "bearer "


def tenant_of(headers: Headers) -> str:
    """Return the tenant named in the headers, else a tenant for their API key, else an empty string.

    Only a hash of the key is used. It is the same in every web process.

    Raises `InvalidField` if the tenant's name is invalid.
    """
    name = headers.get(_HEADER)
    if name is not None:
        if not _NAME.fullmatch(name):
            raise InvalidField(
                _HEADER,
                f"given {as_json(name)} of {len(name)} characters; accepted: 1 to 128 visible ASCII characters",
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
