"""Clients that hold connections and hardly use them, in a process of their own: idle ones, and ones that trickle.

`python -m tests.support.slow_clients HOST PORT COUNT` keeps COUNT connections open: what the server closes comes again.
Each second it writes a line: how many were open, and how many the server has closed so far. It ends with its input.
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
from types import TracebackType
from typing import Self

from tests.support.paths import REPO_ROOT, child_environment

_HEAD = b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_STARTS = (
    b"",
    b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    _HEAD + b"x-slow: ",
    _HEAD + b"Content-Length: 5000\r\n\r\n{",
)
"""What the clients send at first, by turns: nothing, a whole request, part of the headers, part of a body. The last two
then send a space each second.
"""

_TURNS = 10
"""A second has so many, and in each of them another part of the clients sends."""


class SlowClients:
    """The process. A context manager: entering it waits until all are connected, leaving it ends it."""

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
        """As counted each second, before those that the server had closed were opened anew."""
        self.num_closed = 0
        """By the server."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Send a byte of each tenth one that sends, and open those anew that have ended. Returns how many had not."""
        ended = []
        for key, _ in self._selector.select(0):
            client = key.fileobj
            if not isinstance(client, socket.socket):
                continue
            with contextlib.suppress(OSError):
                if client.recv(65536).startswith(b"HTTP/1.1 200"):
                    continue  # the one that asked for something
            self._selector.unregister(client)
            client.close()
            ended.append(key.data)
        num_open = len(self._selector.get_map())
        self.num_closed += len(ended)
        for number in ended:
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
