"""Messages between a dispatcher and its child: msgpack over a socket pair, framed by `multiprocessing`.

Only bytes are sent; `multiprocessing` never pickles anything.
"""

from __future__ import annotations

import contextlib
import logging
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

import msgspec

from engines.wire import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0
"""Maximum seconds for the messages in an outbox to be sent."""

Incoming = TypeVar("Incoming")


class LinkClosed(Exception):
    """The peer closed the connection or sent an invalid message."""


class Link(Generic[Incoming]):
    """One end of the connection. One thread may send while another receives."""

    def __init__(self, connection: Connection, decoder: msgspec.msgpack.Decoder[Incoming]) -> None:
        self._connection = connection
        self._decoder = decoder

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; block while the socket is full. Drop it if the peer is gone, which `receive` reports."""
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(msgspec.msgpack.encode(message))

    def receive(self, timeout: float | None) -> Incoming | None:
        """Return the next message, or None after `timeout` seconds without one. A timeout of None waits forever.

        Raises:
            LinkClosed: the peer is gone and all its messages have been received, or it sent a message that is invalid
                or larger than `MAX_MESSAGE_BYTES`.
        """
        try:
            if not self._connection.poll(timeout):
                return None
            data = self._connection.recv_bytes(MAX_MESSAGE_BYTES)
        except (EOFError, OSError):
            raise LinkClosed from None
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            logger.error("invalid message; closing the connection: %s", error)
            raise LinkClosed from None

    def close(self) -> None:
        self._connection.close()


class Outbox:
    """Sends messages from a thread of its own, so that a receiver that does not read never blocks the sender."""

    def __init__(self, link: Link[Incoming]) -> None:
        self._messages: SimpleQueue[msgspec.Struct | None] = SimpleQueue()
        self._thread = Thread(target=self._send_all, args=(link,), daemon=True)
        self._thread.start()

    def put(self, message: msgspec.Struct) -> None:
        self._messages.put(message)

    def close(self) -> None:
        """Stop the thread. It ends later if the other end is not gone and does not read."""
        self._messages.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _send_all(self, link: Link[Incoming]) -> None:
        while (message := self._messages.get()) is not None:
            link.send(message)
