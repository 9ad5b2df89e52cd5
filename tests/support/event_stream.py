"""AWS's event-stream framing, as the `sagemaker-runtime` API answers with it: messages of headers and a payload.

Big-endian: total length u32, headers' length u32, CRC32 of these 8 bytes, headers, payload, CRC32 of all before. A
header: u8 length of the name, name, type u8 (7 is a string), u16 length of the value, value.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Mapping

_STRING = 7
_PRELUDE_AND_CRCS = 16


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message, complete with both checksums."""
    head = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    prelude = struct.pack(">II", _PRELUDE_AND_CRCS + len(head) + len(payload), len(head))
    data = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return data + struct.pack(">I", crc32(data))


def payload_part(data: bytes) -> bytes:
    """A piece of the container's answer."""
    headers = {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    return message(headers, data)


def exception(kind: str, fields: Mapping[str, str]) -> bytes:
    """What ends a stream that broke: `ModelStreamError` or `InternalStreamFailure`."""
    headers = {
        ":message-type": "exception",
        ":exception-type": kind,
        ":content-type": "application/json",
    }
    return message(headers, json.dumps(fields).encode())


def _header(name: bytes, value: bytes) -> bytes:
    return (
        struct.pack(">B", len(name))
        + name
        + struct.pack(">B", _STRING)
        + struct.pack(">H", len(value))
        + value
    )
