"""Frames on a socket between dispatcher and generating process: a length (u32, little-endian), then msgpack."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import Generic, TypeVar

import msgspec

from engines.python.messages import FromGenerator, ToGenerator

_LENGTH = struct.Struct("<I")
_MAX_FRAME_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 1 << 16

Incoming = TypeVar("Incoming")


class LinkClosed(Exception):
    """The other end is gone."""


class Link(Generic[Incoming]):
    """One end. Sends never block: what the socket does not take at once is kept until `flush`. One thread."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[Incoming]) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._received = bytearray()
        self._unsent = bytearray()
        self._closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: msgspec.Struct) -> None:
        """Send, or keep for later. A message to an end that is gone is dropped: `receive` tells of that."""
        data = self._encoder.encode(message)
        if len(data) > _MAX_FRAME_BYTES:
            raise ValueError(f"a message of {len(data)} bytes; at most {_MAX_FRAME_BYTES} are sent")
        self._unsent += _LENGTH.pack(len(data))
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as the socket takes it."""
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def flush_all(self) -> None:
        """Send what was kept, waiting for the other end to take it."""
        while self._unsent:
            select.select([], [self._socket], [])
            self.flush()

    def receive(self, timeout: float) -> Incoming | None:
        """The next message; None when there is none after `timeout` seconds.

        Raises:
            LinkClosed: the other end is gone, and all that it sent has been received.
        """
        message = self._next_frame()
        if message is None and not self._closed:
            if not select.select([self._socket], [], [], timeout)[0]:
                return None
            self._read()
            message = self._next_frame()
        if message is None and self._closed:
            raise LinkClosed
        return message

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while data := self._socket.recv(_CHUNK_BYTES):
                    self._received += data
            except ConnectionError:
                pass
            self._closed = True

    def _next_frame(self) -> Incoming | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        end = _LENGTH.size + length
        if length > _MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes; at most {_MAX_FRAME_BYTES} are accepted")
        if len(self._received) < end:
            return None
        message = self._decoder.decode(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message


def dispatcher_end(connection: socket.socket) -> Link[FromGenerator]:
    return Link(connection, msgspec.msgpack.Decoder(FromGenerator))


def generator_end(connection: socket.socket) -> Link[ToGenerator]:
    return Link(connection, msgspec.msgpack.Decoder(ToGenerator))
