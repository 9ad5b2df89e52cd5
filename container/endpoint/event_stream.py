"""AWS's event-stream framing of streaming responses in the runtime API: messages of headers and a payload.

Big-endian: total length u32, length of the headers u32, CRC32 of these 8 bytes, headers, payload, CRC32 of all before.
A header: u8 length of the name, name, type u8 (7 is a string), u16 length of the value, value. Clients limit the
payload to 24 MiB.
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
    """Frame a chunk of the container's response."""
    return _message("event", "PayloadPart", "application/octet-stream", data)


def exception(name: str, fields: Mapping[str, str]) -> bytes:
    """Frame the error that ends a failed stream: `ModelStreamError` or `InternalStreamFailure`."""
    return _message("exception", name, "application/json", json.dumps(fields).encode())


def _message(kind: str, name: str, content_type: str, payload: bytes) -> bytes:
    """kind: `event` or `exception`. name: the type of the event or exception."""
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
