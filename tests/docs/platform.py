"""A stand-in for SageMaker's control plane: it takes every call, and endpoints are in service at once.

botocore checks names and types of all fields before it sends anything.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

ANSWER = b'{"EndpointStatus": "InService"}'


class SageMakerControl:
    """A running server. A context manager: leaving it ends it."""

    def __init__(self) -> None:
        self.operations: list[str] = []
        operations = self.operations

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                operations.append(self.headers["X-Amz-Target"].removeprefix("SageMaker."))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(ANSWER)))
                self.end_headers()
                self.wfile.write(ANSWER)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Nothing: the tests' output is for failures."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
