"""A real gunicorn worker on gevent: flushing, disconnects, slow clients, keep-alive."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from container.run.launch import web_connections
from tests.lmi_server.gunicorn_app import ANSWER

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = 12
"""Maximum number of connections that the server keeps open."""


Address = tuple[str, int]
RunningServer = tuple[subprocess.Popen[bytes], Address]


@contextlib.contextmanager
def serving(model_folder: Path, connections: int) -> Iterator[RunningServer]:
    """Start a server. Yields its process and its address. The socket listens already, so clients need not wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "gunicorn", "-b", f"fd://{listener.fileno()}"]
        command += ["-k", "tests.lmi_server.gunicorn_app.AdjustableWorker"]
        command += ["--worker-connections", str(connections), "--keep-alive", "600"]
        command += ["--graceful-timeout", "600"]
        command.append(f"tests.lmi_server.gunicorn_app:make_app('{model_folder}')")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        try:
            yield process, listener.getsockname()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.fixture(scope="module")
def server(model_folder: Path) -> Iterator[RunningServer]:
    with serving(model_folder, CONNECTIONS) as running:
        yield running


@pytest.fixture
def address(server: RunningServer) -> Address:
    return server[1]


@pytest.fixture
def url(address: Address) -> str:
    base = f"http://{address[0]}:{address[1]}"
    assert requests.post(f"{base}/test/reset", timeout=60).status_code == 200
    return base


@pytest.fixture
def short_timeouts(url: str) -> Iterator[None]:
    """Give new connections half a second for the headers, and half a second to send or read data."""
    assert requests.post(f"{url}/test/hurry", timeout=60).status_code == 200
    yield
    assert requests.post(f"{url}/test/reset", timeout=60).status_code == 200


def request_bytes(body: dict[str, Any], path: str = "/invocations") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def wait_abort(url: str) -> None:
    """Wait until the latest requests are aborted, long before their deadline."""
    assert requests.post(f"{url}/test/wait_abort", timeout=60).json() == {"seen": True}


def wait_submitted(url: str) -> None:
    assert requests.get(f"{url}/test/wait_submitted", timeout=60).json() == {"seen": True}


def test_each_step_is_flushed(url: str) -> None:
    with requests.post(
        f"{url}/invocations", json={"inputs": "gated", "stream": True}, stream=True, timeout=60
    ) as r:
        lines = r.iter_lines()
        # The first line arrives before the others are generated.
        records = [json.loads(next(lines))]
        assert requests.post(f"{url}/test/release", timeout=60).status_code == 200
        records += [json.loads(line) for line in lines]
    assert records[-1]["generated_text"] == ANSWER
    assert "".join(record["token"]["text"] for record in records) == ANSWER


@pytest.mark.parametrize("reset", [False, True])
def test_a_disconnect_before_the_first_byte_aborts_the_request(
    reset: bool, address: Address, url: str
) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(request_bytes({"inputs": "hang"}))
        wait_submitted(url)
        if reset:  # with a linger time of 0 s, `close` resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    wait_abort(url)


def test_a_disconnect_during_a_stream_aborts_the_request(address: Address, url: str) -> None:
    body = {"messages": [{"role": "user", "content": "gated"}], "stream": True}
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(request_bytes(body, "/v1/chat/completions"))
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    wait_abort(url)


def test_a_disconnect_after_a_pipelined_request_aborts_the_request(address: Address, url: str) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(request_bytes({"inputs": "hang"}))
        wait_submitted(url)
        client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    wait_abort(url)


def test_one_connection_carries_many_requests(address: Address) -> None:
    connection = http.client.HTTPConnection(*address, timeout=60)
    sockets = set()
    for number in range(6):
        if number % 3 == 2:
            connection.request("GET", "/ping")
        else:
            connection.request(
                "POST", "/invocations", json.dumps({"inputs": "answer", "stream": number % 3 == 1})
            )
        reply = connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200
        assert ("Healthy" if number % 3 == 2 else ANSWER) in text
        sockets.add(connection.sock)
    assert len(sockets) == 1
    connection.close()


def test_pipelined_requests_are_answered_in_order(address: Address) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(
            request_bytes({"inputs": "answer"})
            + b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        data = b"".join(iter(lambda: client.recv(65536), b""))
    assert data.count(b"HTTP/1.1 200") == 2
    assert data.index(ANSWER.encode()) < data.index(b"Healthy")


def test_the_size_of_a_chunked_body_is_limited(url: str) -> None:
    def pieces(count: int) -> Iterator[bytes]:
        yield b'{"inputs": "'
        for _ in range(count):
            yield b"x" * 1000
        yield b'"}'

    small = requests.post(f"{url}/invocations", data=pieces(0), timeout=60)
    assert small.status_code == 424
    large = requests.post(f"{url}/invocations", data=pieces(150), timeout=60)
    assert large.status_code == 413, large.text
    assert "max_request_size" in large.json()["error"]


def test_a_body_with_invalid_chunks_is_refused(address: Address, url: str) -> None:
    head = b"POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(head + b"5\r\n{'inp\r\nzz\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 424")
    assert requests.post(f"{url}/invocations", json={"inputs": "answer"}, timeout=60).status_code == 200


def read_to_end(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            data += part
    return data


HEAD = b"POST /invocations HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.usefixtures("short_timeouts")
def test_slow_headers_time_out(address: Address) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.settimeout(0.1)
        client.sendall(HEAD)
        for _ in range(600):
            with contextlib.suppress(TimeoutError):
                assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
                return
            with contextlib.suppress(OSError):  # the server has already closed the connection
                client.sendall(b"a: b\r\n")
    pytest.fail("slow headers did not time out")


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    "framing", [b"Content-Length: 99\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"]
)
def test_an_incomplete_body_is_a_408(framing: bytes, address: Address) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(HEAD + framing + b'{"in')
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["code"] == 408
    assert "too long" in json.loads(body)["error"]


@pytest.mark.usefixtures("short_timeouts")
def test_a_client_that_does_not_read_its_stream_is_disconnected(address: Address, url: str) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(address)
        client.sendall(request_bytes({"inputs": "endless", "stream": True}))
        wait_submitted(url)
        wait_abort(url)
        with pytest.raises(ConnectionResetError):
            all(iter(lambda: client.recv(65536), b""))


def test_idle_connections_do_not_keep_new_clients_out(address: Address, url: str) -> None:
    with contextlib.ExitStack() as stack:
        active = stack.enter_context(socket.create_connection(address, timeout=60))
        active.sendall(request_bytes({"inputs": "gated"}))
        wait_submitted(url)
        for number in range(3 * CONNECTIONS):
            client = stack.enter_context(socket.create_connection(address, timeout=60))
            client.sendall(HEAD if number % 2 else b"")
            assert requests.get(f"{url}/ping", timeout=60).status_code == 200
        assert requests.post(f"{url}/test/release", timeout=60).status_code == 200
        assert active.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_idle_connection_does_not_keep_others_out_if_few_files_may_be_open(model_folder: Path) -> None:
    with (
        serving(model_folder, web_connections(open_files=2)) as (_, address),
        socket.create_connection(address, timeout=60) as idle,
    ):
        idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        assert requests.get(f"http://{address[0]}:{address[1]}/ping", timeout=60).status_code == 200


def test_a_refused_body_is_read_so_that_the_client_gets_the_error(address: Address) -> None:
    body = b"x" * 3_000_000
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
        client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200 " in read_to_end(client)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_refused_body_is_read_before_the_connection_closes(version: bytes, address: Address) -> None:
    body = b"x" * 3_000_000
    head = HEAD.replace(b"1.1", version) + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(head + body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.split()[1] == b"413"


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /ping\r\n\r\n", 400),
        (b"GET /ping HTTP/3.0\r\n\r\n", 400),
        (b"get /ping HTTP/1.1\r\n\r\n", 400),
        (b"GET /ping?text=\xc3\xa9 HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * 8200 + b" HTTP/1.1\r\n\r\n", 414),
        (HEAD + b"no colon\r\n\r\n", 400),
        (HEAD + b"a: \x00\r\n\r\n", 400),
        (HEAD + b"Content-Length: x\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: unknown\r\n\r\n", 501),
        (HEAD + b"Expect: 200-ok\r\n\r\n", 417),
        (HEAD + b"a: b\r\n" * 101 + b"\r\n", 431),
        (HEAD + b"a: " + b"x" * 40_000 + b"\r\n\r\n", 431),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
def test_malformed_http_gets_an_error_in_json(request_head: bytes, status: int, address: Address) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(request_head)
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ") for line in lines)
    assert status_line.startswith(f"HTTP/1.1 {status} ")
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    assert set(json.loads(body)) == {"error", "code"}
    assert json.loads(body)["code"] == status
    assert len(body) < 400


def test_idle_clients_do_not_delay_shutdown(server: RunningServer) -> None:
    """The last test, because it stops the server."""
    process, address = server
    with contextlib.ExitStack() as stack:
        answered, silent = (
            stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(2)
        )
        answered.sendall(request_bytes({"inputs": "answer"}))
        assert answered.recv(4096).startswith(b"HTTP/1.1 200 ")
        process.terminate()
        assert silent.recv(4096) == b""
        stack.enter_context(socket.create_connection(address, timeout=60))  # still accepted for a moment
        assert process.wait(200) == 0
