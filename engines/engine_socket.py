"""An engine's socket: a ZeroMQ ROUTER on a UNIX socket, to which web processes and the supervisor connect."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import zmq

from engines.wire import MAX_MESSAGE_BYTES, ToClient, ToEngine, decode_to_engine, encode

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0
CHECK_SECONDS = 1.0
"""Interval at which every client with unfinished requests gets a message, if only an empty one, because only sending
reveals that a client is gone."""


class EngineSocket:
    """Socket that receives messages and sends outputs. One thread.

    Sending never blocks: ZeroMQ queues messages that a client has not read yet. `send` reports a client that is gone.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        """Yield all messages that have arrived, each with its client; wait at most `timeout` seconds for the first."""
        if self._socket not in dict(self._poller.poll(int(timeout * 1000))):
            return
        while True:
            try:
                client, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                logger.warning("dropped a message with the wrong number of frames")
                continue
            try:
                yield client, decode_to_engine(data)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                logger.warning("dropped an invalid message: %s", error)

    def watch(self, descriptor: int) -> None:
        """Also return from `receive` when this file is readable. The caller reads it."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`, before the file is closed."""
        self._poller.unregister(descriptor)

    def send(self, client: bytes, message: ToClient) -> bool:
        """Send a message; return False when the client is gone."""
        try:
            self._socket.send_multipart([client, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self) -> None:
        """Send what is queued, for at most 2 seconds, and close the socket."""
        self._socket.close(linger=int(_CLOSE_SECONDS * 1000))
        self._context.term()
