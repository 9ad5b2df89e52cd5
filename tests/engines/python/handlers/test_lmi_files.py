"""Unmodified handlers in the styles of LMI's documentation."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from engines.core import AbortReason
from tests.support.handler_engine import LMI_FILES, HandlerEngine, handler_config

Start = Callable[..., HandlerEngine]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start the engine of a handler, or return it if it is running."""
    engines: dict[str, HandlerEngine] = {}

    def engine(name: str, **settings: object) -> HandlerEngine:
        if name not in engines:
            engines[name] = HandlerEngine(handler_config(name, **settings))  # type: ignore[arg-type]
            engines[name].wait_ready()
        return engines[name]

    yield engine
    for one in engines.values():
        one.destroy()


def test_a_handler_gets_options_at_load_and_headers_with_each_request(start: Start) -> None:
    engine = start("plain", task="shout")
    reply = engine.invoke({"inputs": "hello"}, Tenant="blue")
    assert reply.status == 200
    assert reply.json() == {
        "task": "shout",
        "folder": str(LMI_FILES / "plain"),
        "text": "HELLO",
        "tenant": "blue",
        "id": reply.name,
    }
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["X-Amzn-SageMaker-Custom-Attributes"] == "seen=yes"


def test_an_error_of_the_handler_returns_424_with_its_message(start: Start) -> None:
    reply = start("plain", task="shout").invoke({"other": "hello"})
    assert reply.status == 424
    assert reply.json() == {"code": 424, "message": "invoke handler failure", "error": "'inputs'"}


def test_concurrent_requests_share_a_batch(start: Start) -> None:
    engine = start("batch", batch_size=8, max_batch_delay=60.0)  # the batch starts when it is full
    replies = [engine.invoke({"inputs": f"item{i}"}) for i in range(8)]
    assert [reply.json()["text"] for reply in replies] == [f"{i}meti" for i in range(8)]
    assert {reply.json()["batch"] for reply in replies} == {8}


def test_an_exception_fails_only_one_request_of_a_batch(start: Start) -> None:
    engine = start("batch", batch_size=8, max_batch_delay=60.0)  # the batch starts when it is full
    texts = ["a", "b", "c", "raise", "e", "f", "g", "h"]
    replies = [engine.invoke({"inputs": text}) for text in texts]
    assert [reply.status for reply in replies] == [200, 200, 200, 424, 200, 200, 200, 200]
    assert [reply.json().get("text") for reply in replies if reply.status == 200] == list("abcefgh")
    assert "invalid literal for int()" in replies[3].json()["error"]


def test_a_stream_is_sent_in_the_parts_that_the_handler_yields(start: Start) -> None:
    reply = start("streaming").invoke({"inputs": "to be or"})
    assert [piece.body for piece in reply.pieces if piece.body] == [
        b'{"outputs": ["to"]}\n',
        b'{"outputs": ["be"]}\n',
        b'{"outputs": ["or"]}\n',
    ]
    assert reply.headers == {"content-type": "application/jsonlines"}
    own = start("streaming").invoke({"inputs": "to be", "own": True})
    assert own.body == b'{"word": "to"}\n{"word": "be"}\n'


def test_a_stream_that_fails_ends_with_an_error_record(start: Start) -> None:
    reply = start("streaming").invoke({"inputs": "to be", "fail": True})
    assert reply.status == 200
    assert reply.body.splitlines()[-1] == b'{"error": "the model lost its thread", "code": 424}'
    assert reply.body.endswith(b"\n")


def test_a_stream_whose_client_disconnects_is_stopped(start: Start, tmp_path: Path) -> None:
    engine = start("streaming")
    mark = tmp_path / "stopped"
    reply = engine.invoke({"inputs": "", "forever": str(mark)})
    assert reply.next().body == b"tick\n"
    engine.client.abort(reply.name, AbortReason.CLIENT_LEFT)
    assert engine.invoke({"inputs": "again", "own": True}).status == 200, "the worker is free again"
    assert mark.read_text() == "stopped"


def test_decorated_functions_make_a_handler(start: Start) -> None:
    engine = start("decorators")
    assert engine.invoke({"features": [1, 2, 3]}).json() == {"predictions": [321.0]}
    assert engine.invoke({"inputs": [[1, 0, 0], [0, 1, 0]]}).json() == {"predictions": [1.0, 10.0]}
    assert engine.invoke("no json").status == 424


def test_toolkit_functions_make_a_handler(start: Start) -> None:
    engine = start("toolkit", entry="inference.py")
    reply = engine.invoke({"inputs": [1, 2]}, Content_Type="application/json")
    assert (reply.json(), reply.headers) == ({"predictions": [3, 6]}, {"Content-Type": "application/json"})
    reply = engine.invoke("1,2\n3,4", Content_Type="text/csv", Accept="text/csv")
    assert (reply.body, reply.headers) == (b"3.0\n6.0\n9.0\n12.0", {"Content-Type": "text/csv"})
    assert (
        "Unsupported content type: image/png" in engine.invoke("x", Content_Type="image/png").json()["error"]
    )


def test_arbitrary_bytes_pass_through(start: Start) -> None:
    engine = start("binary")
    file = io.BytesIO()
    numpy.save(file, numpy.arange(1000))
    reply = engine.invoke(file.getvalue()[::-1], content_type="image/png")
    assert numpy.load(io.BytesIO(reply.body)).sum() == 499500
    assert reply.headers == {"Content-Type": "application/x-npy"}
    large = bytes(range(256)) * 160_000
    assert engine.invoke(large, content_type="a/b").body == large[::-1]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("nothing", 204, b""),
        ("teapot", 418, b"short and stout"),
        ("memory", 507, b""),
        ("wrong", 424, b"dict"),
        ("status", 424, b"the status 9"),
        ("header", 424, b"the header name 'a b:'"),
    ],
)
def test_the_handler_sets_the_status(start: Start, body: str, status: int, text: bytes) -> None:
    reply = start("binary").invoke(body)
    assert reply.status == status
    assert text in reply.body
    head = reply.pieces[0].head
    assert head is not None
    assert head.message == {204: "No Content", 418: "I'm a teapot: yes", 507: "no room"}.get(
        status, "invoke handler failure"
    )
