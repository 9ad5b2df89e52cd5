"""Slow clients in a separate process: connections that are idle, or send a byte from time to time.

`python -m tests.support.slow_clients HOST PORT COUNT` keeps COUNT connections open, and reopens those that the server
closes. Each second it prints how many were open, and how many the server has closed so far. It exits when stdin closes.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import select
import selectors
import socket
import subprocess
import sys
import time
from typing import Self

from tests.support.paths import REPO_ROOT, child_environment

_HEAD = b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_STARTS = (
    b"",
    b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    _HEAD + b"x-slow: ",
    _HEAD + b"Content-Length: 5000\r\n\r\n{",
)
"""First bytes of the clients, in turn: nothing, a complete request, part of the headers, part of a body. The last two
then send a space each second.
"""

_TURNS = 10
"""Number of turns per second. In each turn another part of the clients sends."""


class SlowClients:
    """The process. A context manager: entering it waits until all clients are connected, leaving it stops them."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, host, str(port), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO_ROOT,
            env=child_environment({}),
        )
        self.num_open: list[int] = []
        """Open connections in each second, before closed ones are reopened."""
        self.num_closed = 0
        """Connections that the server has closed."""

    def watch(self) -> None:
        """Wait for the process's next line."""
        if self._process.stdout is None:
            raise RuntimeError("no output")
        num_open, self.num_closed = map(int, self._process.stdout.readline().split())
        self.num_open.append(num_open)

    def __enter__(self) -> Self:
        try:
            self.watch()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


class _Crowd:
    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._address = address
        self._selector = selectors.DefaultSelector()
        self.num_closed = 0
        for number in range(count):
            self._open(number)

    def _open(self, number: int) -> None:
        client = socket.create_connection(self._address, timeout=60)
        client.setblocking(False)
        client.sendall(_STARTS[number % len(_STARTS)])
        self._selector.register(client, selectors.EVENT_READ, number)

    def trickle(self, turn: int) -> int:
        """Send a byte from this turn's clients, and reopen closed connections. Return how many were still open."""
        closed = []
        for key, _ in self._selector.select(0):
            client = key.fileobj
            if not isinstance(client, socket.socket):
                continue
            with contextlib.suppress(OSError):
                if client.recv(65536).startswith(b"HTTP/1.1 200"):
                    continue  # the response to a complete request
            self._selector.unregister(client)
            client.close()
            closed.append(key.data)
        num_open = len(self._selector.get_map())
        self.num_closed += len(closed)
        for number in closed:
            self._open(number)
        for key in list(self._selector.get_map().values()):
            sends = key.data % len(_STARTS) >= 2 and key.data // len(_STARTS) % _TURNS == turn
            if sends and isinstance(key.fileobj, socket.socket):
                with contextlib.suppress(OSError):
                    key.fileobj.send(b" ")
        return num_open


def main() -> None:
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = _Crowd((host, port), count)
    for number in itertools.count():
        turn = number % _TURNS
        began = time.monotonic()
        num_open = crowd.trickle(turn)
        if turn == 0:
            print(num_open, crowd.num_closed, flush=True)
        rest = began + 1.0 / _TURNS - time.monotonic()
        if select.select([sys.stdin], [], [], max(rest, 0.0))[0]:
            return


if __name__ == "__main__":
    main()
