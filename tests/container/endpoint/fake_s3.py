"""An in-memory S3 with the operations that an endpoint needs: one-page listings, objects, and range reads."""

from __future__ import annotations

import re
import zlib
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import boto3
from botocore.config import Config

from tests.support.loopback import LoopbackServer, QuietHandler


class FakeS3(LoopbackServer):
    """A fake S3 server and a client for it. Objects are stored by `bucket/key`."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.objects: dict[str, bytes] = {}
        self.client = boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id="any",
            aws_secret_access_key="any",  # noqa: S106 - not checked
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
            ),
        )

    def close(self) -> None:
        self.client.close()
        super().close()


def _etag(data: bytes) -> str:
    return f'"{zlib.crc32(data):08x}"'


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"  # clients wait a second for `100 Continue` otherwise
    server: FakeS3

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[unquote(self.path[1:])] = data
        self.respond(200, b"", {"ETag": _etag(data)})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        name = unquote(address.path[1:])
        query = parse_qs(address.query)
        if "list-type" in query:
            found = {
                key.split("/", 1)[1]: data
                for key, data in self.server.objects.items()
                if key.startswith(f"{name}/{query['prefix'][0]}")
            }
            rows = "".join(
                f"<Contents><Key>{escape(key)}</Key><ETag>{_etag(data)}</ETag><Size>{len(data)}</Size></Contents>"
                for key, data in found.items()
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self.respond(200, text.encode(), {"Content-Type": "application/xml"})
        data = self.server.objects.get(name)
        if data is None:
            return self.respond(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>", {})
        etag = _etag(data)
        if byte_range := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            data = data[int(byte_range[1]) : int(byte_range[2]) + 1]
        return self.respond(206 if byte_range else 200, data, {"ETag": etag})
