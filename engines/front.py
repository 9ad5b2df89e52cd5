"""An engine's door: a ZeroMQ ROUTER on a UNIX socket, to which web processes and the supervisor connect."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterator

import msgspec
import zmq

from engines.core import RequestOutput
from engines.wire import Outputs, ToClient, ToEngine, decode_to_engine, encode

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_HIGH_WATER_MARK = 1000
_CLOSE_SECONDS = 2.0
_RETRY_SECONDS = 0.02


class Front:
    """Receives messages and sends outputs. One thread.

    Nothing is lost unseen: a message that a client's full queue does not take is kept and sent later, and a client
    that is gone is reported by `send`.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._unsent: defaultdict[bytes, deque[bytes]] = defaultdict(deque)

    def wait_seconds(self, idle: float) -> float:
        """How long an idle engine may wait for messages: `idle` seconds, less when something is still to be sent."""
        return _RETRY_SECONDS if self._unsent else idle

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        """All messages that are there, each with its client; waits at most `timeout` seconds for the first."""
        if self._socket not in dict(self._poller.poll(int(timeout * 1000))):
            return
        while True:
            try:
                client, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                logger.warning("a message of the wrong number of frames was dropped")
                continue
            try:
                yield client, decode_to_engine(data)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                logger.warning("a message that is none of ours was dropped: %s", error)

    def watch(self, descriptor: int) -> None:
        """From now on, end the wait of `receive` also when this file can be read; what it holds is the caller's."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Before the file is closed."""
        self._poller.unregister(descriptor)

    def send(self, client: bytes, message: ToClient) -> bool:
        """Send, or keep for later; False when the client is gone."""
        self._unsent[client].append(encode(message))
        return self._flush(client)

    def send_outputs(self, client: bytes, outputs: list[RequestOutput]) -> bool:
        """All that is to be told to one client, as one message; False when the client is gone."""
        return self.send(client, Outputs(outputs))

    def flush(self) -> list[bytes]:
        """Send what was kept. Returns the clients that are gone."""
        return [client for client in list(self._unsent) if not self._flush(client)]

    def close(self) -> None:
        """Send what is left, for at most 2 seconds, and let go of the socket."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._unsent and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.005)
        self._socket.close(linger=max(0, int((deadline - time.monotonic()) * 1000)))
        self._context.term()

    def _flush(self, client: bytes) -> bool:
        queue = self._unsent[client]
        while queue:
            try:
                self._socket.send_multipart([client, queue[0]], zmq.NOBLOCK)
            except zmq.Again:
                return True
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                del self._unsent[client]
                return False
            queue.popleft()
        del self._unsent[client]
        return True
