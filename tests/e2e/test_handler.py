"""A user's handler over HTTP: bytes, status codes, streams, required packages, and a crash.

The working directory has files that are named like modules that the server imports.
"""

from __future__ import annotations

import os
import socket
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from tests.support.server import Server

pytestmark = pytest.mark.e2e

HANDLER = """
import os
import time

import shouting
from djl_python import Input, Output


def count(n):
    for i in range(n):
        time.sleep(0.1)
        yield i


def handle(inputs: Input):
    if inputs.is_empty():
        return None
    kind = inputs.get_property("Content-Type")
    if kind == "application/octet-stream":
        data = inputs.get_as_bytes()
        output = Output(201, "Made").add(data[::-1])
        return output.add_property("Content-Type", "image/x-any").add_property("Content-Length", "3")
    if kind and kind.startswith("multipart/"):
        parts = inputs.get_content()
        return Output().add_as_json({key: len(value) for key, value in parts})
    body = inputs.get_as_json()
    if body == "die":
        os._exit(1)
    if body == "attributes":
        return Output().add_as_json([inputs.get_property("a"), inputs.get_property("accept"), inputs.request_id])
    if isinstance(body, int):
        return Output().add_property("Content-Type", "application/jsonlines").add_stream_content(count(body))
    return Output().add(shouting.shout(body))
"""
PACKAGE = "def shout(text):\n    return text.upper() + '!'\n"
METADATA = "Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(folder / "shouting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("shouting.py", PACKAGE)
        wheel.writestr("shouting-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("shouting-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("shouting-1.0.dist-info/RECORD", "")


@pytest.fixture(scope="module")
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("working-directory")
    for name in ("zmq", "msgspec", "gevent", "gunicorn", "numpy", "engines", "lmi_server"):
        (folder / f"{name}.py").write_text("import pathlib\npathlib.Path(__file__ + '.ran').touch()\n")
    return folder


@pytest.fixture(scope="module")
def server(working_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("handler")
    (folder / "model.py").write_text(HANDLER)
    (folder / "requirements.txt").write_text("shouting==1.0\nnumpy\n")
    write_wheel(folder / "requirements")
    environment = {
        "LMI_ALLOW_REMOTE_CODE": "true",
        "DJL_OFFLINE": "true",
        "LMI_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }
    properties = "engine=Python\nmax_request_size=1000000\n"
    with Server(folder, properties, environment=environment, cwd=working_directory) as server:
        yield server


def post(server: Server, body: bytes, path: str = "/invocations", **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(server.base_url + path, body, headers=named, timeout=60)


@pytest.mark.parametrize(
    "path", ["/invocations", "/predictions/model", "/predictions/model/1", "/v1/completions"]
)
def test_a_package_from_requirements_txt_is_installed(server: Server, path: str) -> None:
    answer = post(server, b'"hello"', path, Content_Type="application/json")
    assert (answer.status_code, answer.content) == (200, b"HELLO!")
    assert "Content-Type" not in answer.headers, "only the handler sets it, as in LMI"


def test_the_handler_sets_bytes_status_reason_and_headers(server: Server) -> None:
    data = os.urandom(900_000)
    answer = post(server, data, Content_Type="application/octet-stream")
    assert (answer.status_code, answer.reason) == (201, "Made")
    assert answer.headers["Content-Type"] == "image/x-any"
    assert answer.headers["Content-Length"] == "900000", "set by the server"
    assert answer.content == data[::-1]


def test_headers_and_custom_attributes_become_input_properties(server: Server) -> None:
    headers = {"X-Amzn-SageMaker-Custom-Attributes": "a=1;b=2", "X-Amzn-SageMaker-Inference-Id": "mine"}
    answer = post(server, b'"attributes"', Accept="x/y", Content_Type="application/json", **headers)
    assert answer.content.split() == b'[ "1", "x/y", "mine" ]'.split()
    assert answer.headers["x-request-id"] == "mine"


def test_form_fields_become_parts_of_the_input(server: Server) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nxyz\r\n--b\r\nContent-Disposition: form-data;'
    form += b' name="f"; filename="f.bin"\r\nContent-Type: image/png\r\n\r\n\x00\x01\r\n--b--\r\n'
    answer = post(server, form, "/invocations?q=12345", Content_Type="multipart/form-data; boundary=b")
    assert answer.content.split() == b'{ "a": 3, "f": 2, "q": 5 }'.split()


def test_a_stream_is_sent_in_chunks(server: Server) -> None:
    with requests.post(server.base_url + "/invocations", json=3, stream=True, timeout=60) as answer:
        assert answer.headers["Transfer-Encoding"] == "chunked"
        assert list(answer.iter_lines()) == [b'{"outputs": 0}', b'{"outputs": 1}', b'{"outputs": 2}']


def test_a_body_that_is_too_large_is_rejected(server: Server) -> None:
    assert post(server, bytes(1_000_001)).status_code == 413


def test_a_crash_fails_only_its_request_and_the_handler_restarts(server: Server) -> None:
    answer = post(server, b'"die"', Content_Type="application/json")
    assert answer.status_code == 424
    assert b"the handler's process ended" in answer.content
    server.wait_ready()
    assert post(server, b'"again"', Content_Type="application/json").content == b"AGAIN!"


def test_metrics_include_the_handler_counters(server: Server) -> None:
    text = server.client.get("/metrics").body
    assert 'engine="Handler"' in text
    assert "lmi_worker_restarts_total" in text


def test_files_in_the_working_directory_are_not_imported(server: Server, working_directory: Path) -> None:
    assert server.client.ping() == 200
    assert not list(working_directory.glob("*.ran"))


def test_a_stream_ends_normally_when_every_process_gets_sigterm(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER.replace("import shouting\n", ""))
    with Server(tmp_path, "engine=Python\n") as server:
        with requests.post(server.base_url + "/invocations", json=20, stream=True, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            for process in server.processes():
                process.terminate()
            assert len(list(lines)) == 19
        assert server.wait_exit() == 0
        assert server.leftover_processes() == []


def test_a_slow_client_gets_its_whole_response_during_the_shutdown(tmp_path: Path) -> None:
    """The handler has long ended when the client begins to read."""
    size = 24 << 20  # more than the sockets hold
    (tmp_path / "model.py").write_text(
        f"from djl_python import Output\ndef handle(inputs):\n    return Output().add(bytes({size}))\n"
    )
    with Server(tmp_path, "engine=Python\n") as server, closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"POST /invocations HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        received = len(client.recv(1 << 16))
        server.process.terminate()
        time.sleep(4)
        assert server.process.poll() is None
        while data := client.recv(1 << 20):
            received += len(data)
        assert received > size
        assert server.wait_exit() == 0
