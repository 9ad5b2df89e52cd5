"""A container that starts quickly: `tiny_container.py FOLDER`. Every response contains its environment.

Environment variables: EXIT prints this text and exits. DEAF ignores SIGTERM. SICK returns 503 for /ping.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(503 if "SICK" in os.environ else 200, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        files = sorted(path.name for path in Path(sys.argv[1]).iterdir())
        self.answer(200, json.dumps({"environment": dict(os.environ), "files": files}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def on_sigterm(number: int, frame: object) -> None:
    if "DEAF" not in os.environ:
        sys.exit(0)


if "EXIT" in os.environ:
    sys.exit(os.environ["EXIT"])
signal.signal(signal.SIGTERM, on_sigterm)
print("up", file=sys.stderr, flush=True)
HTTPServer(("127.0.0.1", int(os.environ["SAGEMAKER_BIND_TO_PORT"])), Handler).serve_forever()
