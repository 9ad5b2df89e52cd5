"""`/invocations` with a user's handler: requests to the engine, and responses from its outputs."""

from __future__ import annotations

import gc
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.formparser import FormDataParser

from engines.base import HandlerEngine
from engines.copies.known_prefixes import KnownPrefixes
from engines.copies.replica_set import ReplicaSet
from engines.core import AbortReason
from engines.health import EngineState, Health
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from lmi_server.apis.handler import request as handler_request
from lmi_server.app import create_app
from lmi_server.config import ServerConfig, WebConfig
from tests.engines.copies.fakes import FakeCopy
from tests.lmi_server.bodies import error_of, refusal_of
from tests.lmi_server.fakes import turns_of_another_greenlet
from tests.support.logs import Logs


class FakeHandlerEngine(HandlerEngine):
    """Answers every invocation with the same outputs. Has only the methods that the handler API calls."""

    def __init__(self) -> None:
        self.outputs = [InvocationOutput("", AnswerHead(200, "OK", ()), b"fine", last=True)]
        self.state = EngineState.READY
        self.invocations: list[Invocation] = []
        self.aborts: list[AbortReason] = []

    def health(self) -> Health:
        return Health(self.state, "", 0.0)

    def invoke(self, invocation: Invocation) -> Any:
        self.invocations.append(invocation)
        outputs = iter(self.outputs)
        return SimpleNamespace(next=lambda timeout: next(outputs, None))

    def abort(self, request_id: str, reason: AbortReason) -> None:
        self.aborts.append(reason)

    @property
    def last(self) -> Invocation:
        return self.invocations[-1]


@pytest.fixture
def engine() -> FakeHandlerEngine:
    return FakeHandlerEngine()


CONFIG = WebConfig(
    ServerConfig(max_request_size=1000, throttle_error_http_code=429),
    "Handler",
    "m",
    "/m",
    0,
    "ipc://none",
    str(Path("/none")),
)


@pytest.fixture
def client(engine: FakeHandlerEngine) -> FlaskClient:
    return create_app(CONFIG, engine, None).test_client()


def test_a_replica_set_is_refused_when_the_app_is_created(tmp_path: Path) -> None:
    copies = ReplicaSet([FakeCopy(), FakeCopy()], KnownPrefixes(2), 1, tmp_path / "lock")
    with pytest.raises(TypeError, match="ReplicaSet cannot run a handler"):
        create_app(CONFIG, copies, None)


def test_headers_attributes_and_body_are_passed_to_the_handler(
    client: FlaskClient, engine: FakeHandlerEngine
) -> None:
    headers = {
        "Content-Type": "image/png",
        "Accept": "x/y",
        "X-Amzn-SageMaker-Custom-Attributes": "a=1; b=2=3;c",
        "x-request-id": "mine",
    }
    answer = client.post("/invocations?k=v", data=b"\x00\xff", headers=headers)
    assert (answer.status_code, answer.data) == (200, b"fine")
    properties = engine.last.properties
    assert (properties["a"], properties["b"]) == ("1", "2=3")
    assert (properties["Content-Type"], properties["Accept"], properties["requestId"]) == (
        "image/png",
        "x/y",
        "mine",
    )
    assert "c" not in properties
    assert engine.last.content == (("data", b"\x00\xff"), ("k", b"v"))
    assert engine.last.id != "mine", "a client's id is only a label"


def test_a_body_is_freed_while_the_handler_runs(client: FlaskClient, engine: FakeHandlerEngine) -> None:
    content = (("data", b"a body that no other request has"),)
    kept: list[object] = []

    def next_output(timeout: float) -> InvocationOutput:
        kept.extend(
            each for each in gc.get_objects() if isinstance(each, Invocation) and each.content == content
        )
        return engine.outputs[0]

    engine.invoke = lambda invocation: SimpleNamespace(next=next_output)  # type: ignore[method-assign]
    assert client.post("/invocations", data=content[0][1]).data == b"fine"
    assert kept == []


@pytest.mark.parametrize("path", ["/predictions/any/1", "/models/any/invoke"])
def test_an_empty_body_differs_from_the_call_at_load_time(
    path: str, client: FlaskClient, engine: FakeHandlerEngine
) -> None:
    client.post(path)
    assert engine.last.content == (("data", b""),)


def test_form_fields_become_parts(client: FlaskClient, engine: FakeHandlerEngine) -> None:
    client.post("/invocations", data={"text": "hi", "number": "3"})
    assert sorted(engine.last.content) == [("number", b"3"), ("text", b"hi")]


@pytest.mark.parametrize("piece_bytes", [7, 64 * 1024])
def test_parts_of_a_form_keep_their_bytes_and_their_order(
    piece_bytes: int, client: FlaskClient, engine: FakeHandlerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_request, "_PIECE_BYTES", piece_bytes)
    parts = [
        ("z", "", b"\x00\xff\r\n--\r\n"),
        ("file", '; filename="a.bin"', bytes(range(256))),
        ("a", "", b""),
        ("z", "", "grüße".encode("latin-1")),
    ]
    body = b"".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"
        for name, file, data in parts
    )
    answer = client.post(
        "/invocations", data=body + b"--x--\r\n", content_type="multipart/form-data; boundary=x"
    )
    assert answer.status_code == 200
    assert engine.last.content == tuple((name, data) for name, _, data in parts)


@pytest.mark.parametrize(
    ("disposition", "parameters", "reason"),
    [
        ('form-data; name="a"', "", "the content type has no boundary"),
        ('form-data; name="a"', "; boundary=\u00e9", "the form cannot be read"),
        ("form-data", "; boundary=x", "a part has no name"),
        ("form-data", "; boundary=y", "the form cannot be read"),
    ],
)
def test_forms_that_cannot_be_read_are_refused(
    disposition: str, parameters: str, reason: str, client: FlaskClient, engine: FakeHandlerEngine
) -> None:
    body = f"--x\r\nContent-Disposition: {disposition}\r\n\r\n1\r\n--x--\r\n".encode()
    answer = client.post("/invocations", data=body, content_type=f"multipart/form-data{parameters}")
    assert reason in refusal_of(answer)
    assert engine.invocations == []


@pytest.fixture
def large_client(engine: FakeHandlerEngine) -> FlaskClient:
    """Accepts bodies of the default maximum size."""
    return create_app(replace(CONFIG, server=ServerConfig()), engine, None).test_client()


FORM_PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
MULTIPART = "multipart/form-data; boundary=x"
URLENCODED = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("part", "end", "content_type"), [(FORM_PART, b"--x--\r\n", MULTIPART), (b"a=1&", b"a=1", URLENCODED)]
)
def test_the_number_of_parts_is_limited(
    part: bytes, end: bytes, content_type: str, large_client: FlaskClient
) -> None:
    num_at_end = end.count(b"=")
    for count, status in ((1000, 200), (1001, 424)):
        answer = large_client.post(
            "/invocations", data=part * (count - num_at_end) + end, content_type=content_type
        )
        assert answer.status_code == status
    assert "more than 1000 parts" in answer.json["error"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (
            b'--x\r\nContent-Disposition: form-data; name="a"%s\r\n\r\n1\r\n--x--\r\n',
            "the headers of a part are",
        ),
        (
            b'--x\r\nA: %s\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
            "the headers of a part are",
        ),
        (b"%s\r\n" + FORM_PART + b"--x--\r\n", "the text before the first part is"),
        (b"--x\r\nA: %s", "the headers of a part are"),
    ],
    ids=["parameters", "header", "preamble", "unfinished"],
)
@pytest.mark.parametrize("piece_bytes", [1000, 64 * 1024])
def test_the_headers_of_a_part_are_limited(
    pattern: bytes, reason: str, piece_bytes: int, large_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_request, "_PIECE_BYTES", piece_bytes)
    answer = large_client.post("/invocations", data=pattern % (b"; b=1" * 20_000), content_type=MULTIPART)
    assert answer.status_code == 424
    assert f"{reason} longer than 8192 bytes" in answer.json["error"]
    if b"1" in pattern:
        short = large_client.post("/invocations", data=pattern % (b"; b=1" * 1500), content_type=MULTIPART)
        assert short.status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(FORM_PART + bytes(1 << 20) + b"\r\n--x--\r\n", MULTIPART), (b"a=" + b"%41" * 300_000, URLENCODED)],
    ids=["multipart", "urlencoded"],
)
def test_other_greenlets_run_while_a_form_is_read(
    body: bytes, content_type: str, large_client: FlaskClient
) -> None:
    with turns_of_another_greenlet() as turns:
        assert large_client.post("/invocations", data=body, content_type=content_type).status_code == 200
    assert len(turns) >= 4


@pytest.mark.parametrize("piece_bytes", [3, 7, 64 * 1024])
def test_urlencoded_parts_are_those_that_werkzeug_reads(
    piece_bytes: int, client: FlaskClient, engine: FakeHandlerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_request, "_PIECE_BYTES", piece_bytes)
    body = "z=1&&a&=b&z=gr%C3%BC+%ff%e2%82&a%41=%4&b==%zz%C3ü%25%%41%E2%82%AC%C3&c=%".encode()
    assert client.post("/invocations", data=body, content_type=URLENCODED).status_code == 200
    _, form, _ = FormDataParser(silent=False).parse(BytesIO(body), URLENCODED, len(body))
    assert engine.last.content == tuple((name, value.encode()) for name, value in form.items(multi=True))


def test_the_handler_sets_status_and_headers_except_those_of_the_server(
    client: FlaskClient, engine: FakeHandlerEngine
) -> None:
    headers = (("Content-Type", "a/b"), ("X-Own", "1"), ("Content-Length", "3"), ("Connection", "close"))
    engine.outputs = [InvocationOutput("", AnswerHead(418, "Tea", headers), b"12345", last=True)]
    answer = client.post("/invocations", data=b"x")
    assert (answer.status, answer.data) == ("418 Tea", b"12345")
    assert (answer.headers["Content-Type"], answer.headers["X-Own"]) == ("a/b", "1")
    assert answer.headers["Content-Length"] == "5"
    assert "Connection" not in answer.headers
    engine.outputs = [InvocationOutput("", AnswerHead(204, "No Content", ()), b"not sent", last=True)]
    assert client.post("/invocations", data=b"x").data == b""


@pytest.mark.parametrize(
    ("kind", "status"),
    [("request_failed", 424), ("overloaded", 429), ("deadline_exceeded", 504), ("engine_died", 503)],
)
def test_an_error_before_the_first_byte_sets_the_status(
    client: FlaskClient, engine: FakeHandlerEngine, kind: str, status: int
) -> None:
    engine.outputs = [InvocationOutput("", error_kind=kind, error_message="why")]
    answer = client.post("/invocations", data=b"x")
    assert (answer.status_code, answer.json) == (status, {"error": "why", "code": status})
    assert engine.aborts == []


def test_an_error_during_a_stream_is_its_last_record(client: FlaskClient, engine: FakeHandlerEngine) -> None:
    engine.outputs = [
        InvocationOutput("", AnswerHead(200, "OK", ()), b"one\n"),
        InvocationOutput("", body=b"two\n"),
        InvocationOutput("", error_kind="request_failed", error_message="gone"),
    ]
    assert client.post("/invocations", data=b"x").data == b'one\ntwo\n{"error":"gone","code":424}\n'


@pytest.mark.parametrize(
    ("path", "content_type", "record"),
    [
        ("/v1/chat/completions", "text/event-stream", b'data: {"error":{"message":"gone",'),
        ("/v1/completions", "", b'data: {"error":{"message":"gone",'),
        ("/invocations", "Text/Event-Stream; charset=utf-8", b'data: {"error":"gone","code":424}\n\n'),
    ],
)
def test_an_error_during_a_stream_of_events_is_an_event(
    path: str, content_type: str, record: bytes, client: FlaskClient, engine: FakeHandlerEngine
) -> None:
    headers = (("content-type", content_type),) if content_type else ()
    engine.outputs = [
        InvocationOutput("", AnswerHead(200, "OK", headers), b"data: 1\n\n"),
        InvocationOutput("", error_kind="request_failed", error_message="gone"),
    ]
    found = client.post(path, data=b"x").data
    assert found.startswith(b"data: 1\n\n" + record)
    assert found.endswith(b"\n\n")


def test_a_stream_that_is_closed_early_is_aborted(client: FlaskClient, engine: FakeHandlerEngine) -> None:
    engine.outputs = [InvocationOutput("", AnswerHead(200, "OK", ()), b"one\n")]
    answer = client.post("/invocations", data=b"x", buffered=False)
    answer.close()
    assert engine.aborts == [AbortReason.CLIENT_LEFT]


def test_requests_are_rejected_unless_the_engine_is_ready(
    client: FlaskClient, engine: FakeHandlerEngine
) -> None:
    engine.state = EngineState.STARTING
    assert client.post("/invocations", data=b"x").status_code == 503
    assert engine.invocations == []


def test_a_body_that_is_too_large_is_refused(client: FlaskClient, engine: FakeHandlerEngine) -> None:
    assert client.post("/invocations", data=bytes(1001)).status_code == 413
    assert engine.invocations == []


def test_the_log_line_does_not_contain_the_body(client: FlaskClient, logs: Logs) -> None:
    client.post("/invocations", data=b"secret words").close()
    assert "POST /invocations status=200" in logs.text
    assert "finish=handler" in logs.text
    assert "secret" not in logs.text


@pytest.mark.parametrize("path", ["/v1/models/", "/admin/scheduler", "/nowhere"])
def test_only_paths_that_the_server_has_are_suggested(path: str, client: FlaskClient) -> None:
    """A server that runs a handler has neither a list of models nor an admin API."""
    text = error_of(client.get(path))
    assert "/invocations" in text
    assert "/v1/models," not in text
    assert "LMI_ADMIN_TOKEN" not in text
