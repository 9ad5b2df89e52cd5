"""A stand-in for SageMaker's control plane: it takes every call, and endpoints are in service at once.

botocore checks names and types of all fields before it sends anything.
"""

from __future__ import annotations

from tests.support.loopback import LoopbackServer, QuietHandler

ANSWER = b'{"EndpointStatus": "InService"}'


class SageMakerControl(LoopbackServer):
    """Knows which operations were called."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.operations: list[str] = []


class _Handler(QuietHandler):
    server: SageMakerControl

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.operations.append(self.headers["X-Amz-Target"].removeprefix("SageMaker."))
        self.respond(200, ANSWER, {"Content-Type": "application/x-amz-json-1.1"})
