"""The engine's socket, with plain ZeroMQ clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from engines.client import EngineClient
from engines.core import AbortReason, FinishReason, RequestOutput
from engines.engine_socket import EngineSocket
from engines.health import StatusBoard
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from engines.wire import (
    Abort,
    Drain,
    GetStats,
    InvocationOutputs,
    Invoke,
    Outputs,
    Submit,
    ToEngine,
    decode_to_client,
    encode,
)
from tests.engines.mpi.fakes import make_request
from tests.support.waiting import wait_until

Connect = Callable[..., "zmq.Socket[bytes]"]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/e.sock"


@pytest.fixture
def engine_socket(address: str) -> Iterator[EngineSocket]:
    engine_socket = EngineSocket(address)
    yield engine_socket
    engine_socket.close()


@pytest.fixture
def connect(address: str) -> Iterator[Connect]:
    """Function that connects a DEALER socket. `receive_limit` is the receive high-water mark of the client."""
    context = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def make(receive_limit: int = 0) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, receive_limit)
        if receive_limit:
            socket.setsockopt(zmq.RCVBUF, 4096)
        socket.connect(address)
        sockets.append(socket)
        return socket

    yield make
    for socket in sockets:
        socket.close()
    context.term()


def _receive(engine_socket: EngineSocket, count: int) -> list[tuple[bytes, ToEngine]]:
    """Receive until there are `count` messages."""
    messages: list[tuple[bytes, ToEngine]] = []

    def is_complete() -> bool:
        messages.extend(engine_socket.receive(0.1))
        return len(messages) >= count

    wait_until(is_complete)
    return messages


def _hello(engine_socket: EngineSocket, socket: zmq.Socket[bytes]) -> bytes:
    """Make the engine know this client. Return its name."""
    socket.send(encode(Abort("hello", AbortReason.CLIENT_LEFT)))
    ((client, _),) = _receive(engine_socket, 1)
    return client


def _next(socket: zmq.Socket[bytes]) -> Outputs:
    assert socket.poll(200_000), "no message was received"
    message = decode_to_client(socket.recv())
    assert isinstance(message, Outputs)
    return message


def test_messages_arrive_in_order_with_their_client(engine_socket: EngineSocket, connect: Connect) -> None:
    one, two = connect(), connect()
    sent = [Submit((make_request("a"),)), Abort("a", AbortReason.CLIENT_LEFT), GetStats(3), Drain(1.0)]
    name_one, name_two = _hello(engine_socket, one), _hello(engine_socket, two)
    assert name_one != name_two
    for message in sent:
        one.send(encode(message))
    two.send(encode(Abort("b", AbortReason.CLIENT_LEFT)))
    received = _receive(engine_socket, 5)
    assert [message for client, message in received if client == name_one] == sent
    assert [message for client, message in received if client == name_two] == [
        Abort("b", AbortReason.CLIENT_LEFT)
    ]


def test_garbage_is_dropped_and_later_messages_are_received(
    engine_socket: EngineSocket, connect: Connect
) -> None:
    socket = connect()
    client = _hello(engine_socket, socket)
    socket.send(b"\xff\xfe garbage")
    socket.send(b"")
    socket.send_multipart([b"too", b"many", b"frames"])
    socket.send(encode(Outputs([])))
    socket.send(encode(Abort("good", AbortReason.CLIENT_LEFT)))
    assert _receive(engine_socket, 1) == [(client, Abort("good", AbortReason.CLIENT_LEFT))]


def test_a_request_above_the_limit_fails_alone(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("engine_socket", "client"):
        monkeypatch.setattr(f"engines.{module}.MAX_MESSAGE_BYTES", 10_000)
    monkeypatch.setattr("engines.health.STALE_AFTER_SECONDS", 1e9)
    StatusBoard.create(tmp_path / "status", 1).beat(0)
    engine_socket, web_process = EngineSocket(address), EngineClient(address, tmp_path / "status")

    def invocation(name: str, size: int) -> Invocation:
        return Invocation(name, 0.0, {}, (("data", b"x" * size),))

    stream = web_process.invoke(invocation("small", 10))
    ((client, _),) = _receive(engine_socket, 1)
    too_large = web_process.invoke(invocation("large", 10_000))
    error = too_large.next(0.0)
    web_process.invoke(invocation("next", 10))
    ((same_client, message),) = _receive(engine_socket, 1)
    assert isinstance(message, Invoke)
    assert (same_client, message.invocation.id) == (client, "next"), "the connection has been closed"
    assert error is not None
    assert (error.error_kind, "at most 10000" in error.error_message) == ("invalid_request", True)
    output = InvocationOutput("small", AnswerHead(200, "OK", ()), b"ok", last=True)
    assert engine_socket.send(client, InvocationOutputs([output]))
    assert stream.next(200) == output
    web_process.close()
    engine_socket.close()


def test_outputs_go_to_their_client_only(engine_socket: EngineSocket, connect: Connect) -> None:
    one, two = connect(), connect()
    name_one, name_two = _hello(engine_socket, one), _hello(engine_socket, two)
    first = RequestOutput("a", (1,), (-0.5,))
    second = RequestOutput("b", (2,), finish_reason=FinishReason.LENGTH)
    assert engine_socket.send(name_one, Outputs([first]))
    assert engine_socket.send(name_two, Outputs([second]))
    assert _next(one).outputs == [first]
    assert _next(two).outputs == [second]
    assert not one.poll(0)
    assert not two.poll(0)


def test_sending_to_a_disconnected_client_returns_false(
    engine_socket: EngineSocket, connect: Connect
) -> None:
    staying, leaving = connect(), connect()
    name_staying, name = _hello(engine_socket, staying), _hello(engine_socket, leaving)
    leaving.close()

    def is_detected() -> bool:
        # Any call that polls the socket detects the closed connection.
        list(engine_socket.receive(0.01))
        return not engine_socket.send(name, Outputs([RequestOutput("a", (1,))]))

    wait_until(is_detected)
    assert engine_socket.send(name_staying, Outputs([RequestOutput("b", (1,))]))
    assert _next(staying).outputs[0].id == "b"


_NUM_MESSAGES = 6000


def _fill(engine_socket: EngineSocket, client: bytes) -> None:
    """Send far more messages than the queues and buffers between the engine and the client can hold."""
    padding = "x" * 500
    for i in range(_NUM_MESSAGES):
        assert engine_socket.send(
            client, Outputs([RequestOutput(str(i), error_kind="e", error_message=padding)])
        )


def test_a_slow_client_gets_all_outputs_in_order_and_does_not_delay_others(
    engine_socket: EngineSocket, connect: Connect
) -> None:
    slow, quick = connect(receive_limit=1), connect()
    name_slow, name_quick = _hello(engine_socket, slow), _hello(engine_socket, quick)
    _fill(engine_socket, name_slow)
    assert engine_socket.send(name_quick, Outputs([RequestOutput("quick")])), (
        "a slow client must not delay others"
    )
    assert _next(quick).outputs[0].id == "quick"
    received = []
    for _ in range(_NUM_MESSAGES):
        received.append(_next(slow).outputs[0].id)
    assert received == [str(i) for i in range(_NUM_MESSAGES)]


_READER = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.RCVHWM, 0)
socket.connect(sys.argv[1])
socket.send(bytes.fromhex(sys.argv[2]))
count = 0
while count < int(sys.argv[3]) and socket.poll(60_000):
    socket.recv()
    count += 1
print(count)
"""


def test_unsent_outputs_are_sent_before_the_front_closes(
    engine_socket: EngineSocket, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The web process was stopped for a while: its socket buffers are full, but the connection is alive."""
    # A busy machine may take longer than the default.
    monkeypatch.setattr("engines.engine_socket._CLOSE_SECONDS", 60.0)
    arguments = [
        sys.executable,
        "-c",
        _READER,
        address,
        encode(Abort("hello", AbortReason.CLIENT_LEFT)).hex(),
        str(_NUM_MESSAGES),
    ]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as reader:
        ((client, _),) = _receive(engine_socket, 1)
        reader.send_signal(signal.SIGSTOP)
        _fill(engine_socket, client)
        reader.send_signal(signal.SIGCONT)
        engine_socket.close()
        assert reader.communicate(timeout=200)[0] == f"{_NUM_MESSAGES}\n"


def test_a_client_that_does_not_read_cannot_block_closing(address: str, connect: Connect) -> None:
    engine_socket = EngineSocket(address)
    _fill(engine_socket, _hello(engine_socket, connect(receive_limit=1)))
    engine_socket.close()


def test_receive_returns_when_a_watched_file_is_readable(engine_socket: EngineSocket) -> None:
    reading, writing = os.pipe()
    engine_socket.watch(reading)
    os.write(writing, b"x")
    assert list(engine_socket.receive(1000.0)) == []
    engine_socket.unwatch(reading)
    started = time.monotonic()
    assert list(engine_socket.receive(0.05)) == []
    assert time.monotonic() - started >= 0.05, "the file is readable but no longer watched"
    os.close(reading)
    os.close(writing)
