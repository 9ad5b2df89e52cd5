"""HTTP servers on 127.0.0.1, each a thread of this process for as long as a block lasts."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a free port from the start, and answers from `start` to `close`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no line for each request."""

    def log_message(self, *arguments: Any) -> None:
        """Nothing: the tests' output is for failures."""

    def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
