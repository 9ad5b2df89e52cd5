"""AWS's event-stream framing, in which the runtime API answers a streaming call: messages of headers and a payload.

Big-endian: total length u32, length of the headers u32, CRC32 of these 8 bytes, headers, payload, CRC32 of all before.
A header: u8 length of the name, name, type u8 (7 is a string), u16 length of the value, value. The limits are those of
clients: a payload of 24 MiB.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Mapping

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7
_PRELUDE_AND_CRCS = 16


def payload_part(data: bytes) -> bytes:
    """Frame a piece of the container's answer."""
    return _message("event", "PayloadPart", "application/octet-stream", data)


def exception(name: str, fields: Mapping[str, str]) -> bytes:
    """Frame the end of a stream that failed: `ModelStreamError` or `InternalStreamFailure`."""
    return _message("exception", name, "application/json", json.dumps(fields).encode())


def _message(kind: str, name: str, content_type: str, payload: bytes) -> bytes:
    """kind: `event` or `exception`; name: what kind of those."""
    headers = {":message-type": kind, f":{kind}-type": name, ":content-type": content_type}
    head = b"".join(
        struct.pack(">B", len(field))
        + field.encode()
        + struct.pack(">BH", _STRING, len(value))
        + value.encode()
        for field, value in headers.items()
    )
    prelude = struct.pack(">II", _PRELUDE_AND_CRCS + len(head) + len(payload), len(head))
    data = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return data + struct.pack(">I", crc32(data))
