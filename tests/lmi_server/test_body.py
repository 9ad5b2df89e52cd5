"""Request bodies: parsed in linear time, without blocking other requests, limited in size, with short errors."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gevent
import pytest
from flask import Request
from flask.testing import FlaskClient
from gevent.event import Event
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.test import EnvironBuilder, TestResponse

from engines.errors import InvalidRequest, Overloaded
from lmi_server.apis.parameters.checks import refuse_unknown
from lmi_server.config import ServerConfig
from lmi_server.errors import BodyTooSlow
from lmi_server.http import body as body_module
from lmi_server.http import json_object
from lmi_server.http.body import Bodies
from lmi_server.http.json_object import parse_object
from lmi_server.values.show import as_json
from tests.lmi_server.bodies import error_of
from tests.lmi_server.conftest import MakeClient
from tests.lmi_server.fakes import turns_of_another_greenlet
from tests.lmi_server.malformed_bodies import body_with_duplicate_name
from tests.support.logs import Logs


def cpu_seconds(num_names: int) -> float:
    data = body_with_duplicate_name(num_names)
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(InvalidRequest, match=r'duplicate name "n0"'):
            parse_object(data)
        best = min(best, time.process_time() - began)
    return best


def test_duplicate_names_are_detected_in_linear_time() -> None:
    """A quadratic check took minutes for a body of 100,000 names, which is one of the `malformed_bodies`."""
    # The best of three, because other programs disturb each.
    assert min(cpu_seconds(50_000) for _ in range(3)) < 40 * cpu_seconds(5_000)


@pytest.fixture
def max_values(monkeypatch: pytest.MonkeyPatch) -> int:
    """A small limit on the number of values. `malformed_bodies` has a body beyond the real one."""
    monkeypatch.setattr(json_object, "MAX_VALUES", 1000)
    return 1000


@pytest.mark.parametrize(
    ("value", "num_values"),
    [("0", 1), ("[]", 1), ("[ \n]", 1), ("{}", 1), ("[[[0]]]", 4), ('{"a": {"b": [0, 1]}}', 5)],
)
def test_the_number_of_values_is_limited(value: str, num_values: int, max_values: int) -> None:
    def body(count: int) -> bytes:
        return f'{{"inputs": [{", ".join([value] * count)}]}}'.encode()

    count = (max_values - 1) // num_values  # the list counts, too
    assert len(parse_object(body(count))["inputs"]) == count
    with pytest.raises(InvalidRequest, match="more than 1000 values; accepted: at most 1000"):
        parse_object(body(count + 1))


def test_a_body_of_too_many_nested_lists_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 MiB of nested lists have few commas. Parsing them took seconds and 3 GB."""
    loads = Mock()
    monkeypatch.setattr(json_object.json, "loads", loads)
    nested = b"[" * 900 + b"]" * 900
    with pytest.raises(InvalidRequest, match="more than 500000 values"):
        parse_object(b'{"inputs": [' + b",".join([nested] * 37_000) + b"]}")
    loads.assert_not_called()


@pytest.mark.parametrize("piece", [",", '\\",', "\\\\,", "é,", "[,", "{,"])
def test_characters_of_strings_do_not_count_as_values(piece: str, max_values: int) -> None:
    text = piece * (max_values + 1)
    body = parse_object(f'{{"a": "\\\\", "inputs": "{text}"}}'.encode())
    assert body["inputs"].count(",") == max_values + 1


@pytest.mark.parametrize(
    "data",
    [
        b'{"inputs": [' + b'{"a": 1},' * 100_000 + b"0]}",
        b'{"inputs": [' + b"[]," * 100_000 + b"0]}",
        b"{" + b",".join(b'"n%d": 0' % number for number in range(100_000)) + b"}",
    ],
    ids=["objects", "lists", "names"],
)
def test_other_greenlets_run_while_a_large_body_is_parsed(data: bytes) -> None:
    with turns_of_another_greenlet() as turns:
        parse_object(data)
    assert len(turns) >= 4


@pytest.mark.parametrize(
    "number",
    [b"2.470328229206232720882843964341106861825299013071623822127928412503377536351e-324", b"9" * 4300],
    ids=["float", "integer"],
)
def test_other_greenlets_run_while_long_numbers_are_parsed(number: bytes) -> None:
    """Some numbers take long to convert: 57 MiB of these floats took 5 s."""
    count = 3_000_000 // len(number)
    with turns_of_another_greenlet() as turns:
        parse_object(b'{"inputs": [' + (number + b",") * count + b"0]}")
    assert len(turns) >= 20


@pytest.mark.parametrize("number", ["0." + "1" * 4299, "-" + "1" * 4298 + "e5", "9" * 4301])
def test_the_length_of_a_number_is_limited(number: str) -> None:
    with pytest.raises(InvalidRequest, match="4300"):
        parse_object(f'{{"inputs": [{number}]}}'.encode())
    assert parse_object(f'{{"inputs": [{number[:-2]}]}}'.encode())


@pytest.mark.parametrize("padding", [0, 3 << 20])
def test_numbers_keep_their_values(padding: int) -> None:
    """Integers of large bodies are parsed in another way than those of small ones."""
    numbers = [0, -1, 2**63, -(10**400), 0.1, -0.0, 1e308, 5e-324, 123456789.123456789]
    body = parse_object(json.dumps({"inputs": numbers, "text": " " * padding}).encode())
    assert [(type(number), number) for number in body["inputs"]] == [(type(one), one) for one in numbers]


LONG = "x" * 100_000


def test_long_names_are_shortened_in_errors() -> None:
    assert len(str(refuse_unknown(f"parameters.{LONG}", LONG, LONG, ["top_k"]))) < 500
    with pytest.raises(InvalidRequest) as caught:
        parse_object(json.dumps({LONG: 0})[:-1].encode() + f', "{LONG}": 1}}'.encode())
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "value",
    [
        [0] * 100 + [object()],
        [[]] * 100 + [object()],
        {**{str(number): {} for number in range(100)}, "last": object()},
        [[[0] * 100, object()], object()],
    ],
)
def test_a_long_value_is_read_only_as_far_as_it_is_shown(value: Any) -> None:
    """The object() is not JSON serializable and stands beyond the part that is shown."""
    assert len(as_json(value)) < 100
    assert as_json(value).endswith("...")


@pytest.mark.parametrize("value", [0, None, "a" * 78, [1, [2, {"a": {}}]], {"a": [], "b": {"c": None}}, []])
def test_a_short_value_is_shown_in_full(value: Any) -> None:
    assert as_json(value) == json.dumps(value)


def test_unknown_names_are_logged_in_one_short_line(make_client: MakeClient, logs: Logs) -> None:
    client = make_client(ServerConfig(unknown_parameters="warn"))
    unknown = {f"{LONG}{number}": 0 for number in range(3)} | {str(number): 0 for number in range(50)}
    for body in ({**unknown, "inputs": "Hello"}, {"inputs": "Hello", "parameters": unknown}):
        logs.records.clear()
        assert client.post("/invocations", json=body).status_code == 200
        lines = [line for line in logs.messages if "ignored" in line]
        assert len(lines) == 1
        assert len(lines[0]) < 500
        assert lines[0].endswith("and 48 more")


@pytest.mark.parametrize("path", ["/invocations", "/v1/completions"])
def test_a_compressed_body_is_refused(path: str, client: FlaskClient) -> None:
    def send(coding: str) -> TestResponse:
        return client.post(path, json={"prompt": "Hello"}, headers={"Content-Encoding": coding})

    assert send("identity").status_code == 200
    assert send("gzip").status_code == 415
    assert error_of(send("gzip")).startswith('Content-Encoding: given "gzip"; accepted: an uncompressed body')


def request_from(stream: Any, length: int | None = None) -> Request:
    environ = EnvironBuilder(method="POST").get_environ() | {"wsgi.input": stream}
    return Request(environ if length is None else environ | {"CONTENT_LENGTH": str(length)})


def request_of(data: bytes, length: int | None = None) -> Request:
    return request_from(BytesIO(data), length)


GOOD = b'{"inputs": "Hello"}'


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Bodies:
    """Accepts bodies of the size of `GOOD`, at most two in flight."""
    monkeypatch.setattr(body_module, "MIN_BYTES_IN_FLIGHT", 0)
    return Bodies(len(GOOD))


def assert_two_bodies_fit(bodies: Bodies) -> None:
    for _ in range(2):  # the second round shows that completed and refused bodies no longer count
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(bodies.json_object(request_of(GOOD, len(GOOD))))
            with pytest.raises(Overloaded, match="at once"), bodies.json_object(request_of(GOOD, len(GOOD))):
                pass


def test_the_size_of_a_body_is_limited_with_and_without_a_content_length(bodies: Bodies) -> None:
    for length in (len(GOOD), None):
        with bodies.json_object(request_of(GOOD, length)) as body:
            assert body == {"inputs": "Hello"}
        larger = request_of(GOOD + b" ", None if length is None else length + 1)
        with pytest.raises(RequestEntityTooLarge), bodies.json_object(larger):
            pass
    assert_two_bodies_fit(bodies)


@pytest.mark.parametrize(
    ("failure", "raised"), [(TimeoutError(), BodyTooSlow), (ConnectionResetError(), InvalidRequest)]
)
def test_bytes_of_a_failed_body_are_no_longer_in_flight(
    failure: Exception, raised: type[Exception], bodies: Bodies
) -> None:
    stream = SimpleNamespace(read=Mock(side_effect=[b"{", failure]))
    with pytest.raises(raised), bodies.json_object(request_from(stream, len(GOOD))):
        pass
    assert_two_bodies_fit(bodies)


def upload(
    bodies: Bodies, pieces: list[bytes], length: int | None = None
) -> tuple[gevent.Greenlet[..., bytes], Event]:
    """Start a body that arrives in pieces, all but the first one after the event. Its greenlet returns the data."""
    more = Event()

    def read(size: int) -> bytes:
        if len(pieces) < num_pieces:
            more.wait()
        return pieces.pop(0) if pieces else b""

    def receive() -> bytes:
        with bodies.raw(request_from(SimpleNamespace(read=read), length)) as data:
            return bytes(data)

    num_pieces = len(pieces)
    greenlet = gevent.spawn(receive)
    gevent.sleep(0)
    return greenlet, more


def test_slow_uploads_do_not_keep_smaller_bodies_out(bodies: Bodies) -> None:
    """The largest one is rejected when its client continues. The others and the new one are read."""
    size = len(GOOD)
    large, large_continues = upload(bodies, [b"x" * (size - 1), b"x"], size)
    small, small_continues = upload(bodies, [b"y" * (size - 2), b"y" * 2], size)
    for _ in range(2):
        with bodies.json_object(request_of(b"{}", 2)) as body, bodies.raw(request_of(b"0123456", 7)):
            assert body == {}
    large_continues.set()
    with pytest.raises(Overloaded, match="at once"):
        large.get()
    small_continues.set()
    assert small.get() == b"y" * size
    assert_two_bodies_fit(bodies)


def test_a_body_larger_than_all_incomplete_ones_is_refused(bodies: Bodies) -> None:
    uploads = [upload(bodies, [b"x" * (len(GOOD) - 1), b"x"], len(GOOD)) for _ in range(2)]
    with pytest.raises(Overloaded, match="at once"), bodies.raw(request_of(GOOD, len(GOOD))):
        pass
    for greenlet, continues in uploads:
        continues.set()
        assert greenlet.get() == b"x" * len(GOOD)
    assert_two_bodies_fit(bodies)


def test_a_chunked_body_may_be_evicted_before_its_end_is_known(bodies: Bodies) -> None:
    greenlets = [upload(bodies, [b"x" * len(GOOD)]) for _ in range(2)]
    with bodies.json_object(request_of(b"{}", 2)):
        pass
    refused = 0
    for greenlet, continues in greenlets:
        continues.set()
        greenlet.join()
        refused += isinstance(greenlet.exception, Overloaded)
    assert refused == 1
    assert_two_bodies_fit(bodies)


def test_a_read_waits_for_few_bytes_until_many_have_arrived() -> None:
    """The bytes for which a read waits do not count yet."""
    stream = SimpleNamespace(read=Mock(side_effect=lambda size: b"x" * size))
    length = 1_000_000
    with Bodies(length).raw(request_from(stream, length)) as data:
        assert len(data) == length
    sizes = [call.args[0] for call in stream.read.call_args_list]
    assert sizes[0] == 1024
    assert all(size <= sum(sizes[:index]) for index, size in enumerate(sizes) if index)
    assert max(sizes) == 64 * 1024


def test_an_incomplete_body_is_refused() -> None:
    request = request_of(GOOD, len(GOOD) + 1)
    with (
        pytest.raises(InvalidRequest, match="before the whole body arrived"),
        Bodies(100).json_object(request),
    ):
        pass


@pytest.mark.parametrize(("path", "status"), [("/invocations", 503), ("/v1/chat/completions", 429)])
def test_too_many_bytes_in_flight_are_rejected_like_a_full_queue(
    path: str, status: int, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three requests arrives while the previous one is being read. The third one is rejected."""
    monkeypatch.setattr(body_module, "MIN_BYTES_IN_FLIGHT", 0)
    client = make_client(ServerConfig(max_request_size=len(GOOD)))
    replies = []

    class NestedStream:
        """A body that sends the next request before its own last byte."""

        def __init__(self) -> None:
            self._pieces = [GOOD[-1:], GOOD[:-1]]

        def read(self, size: int) -> bytes:
            if len(self._pieces) == 1:
                send()
            return self._pieces.pop()

    def send() -> None:
        body = {"wsgi.input": NestedStream(), "CONTENT_LENGTH": str(len(GOOD))}
        replies.append(client.post(path, environ_overrides=body))

    send()
    assert replies[0].status_code == status
    assert int(replies[0].headers["Retry-After"]) > 0
    assert len(replies) == 3
    assert status not in [reply.status_code for reply in replies[1:]]


def test_a_byte_order_mark_is_ignored() -> None:
    mark = b"\xef\xbb\xbf"
    assert parse_object(mark + b'{"inputs": "a"}') == {"inputs": "a"}
    with pytest.raises(InvalidRequest, match="byte 14 "):
        parse_object(mark + b'{"inputs": \xff}')


@pytest.mark.parametrize(
    "content_type",
    [None, "application/octet-stream", "application/vnd.a+json", "application/jsonlines; charset=utf-8"],
)
def test_one_json_object_is_accepted_under_each_type(content_type: str | None, client: FlaskClient) -> None:
    """SageMaker's batch transform sends each line of a file as `application/jsonlines`."""
    line = b'{"inputs": "Hello"}\n'
    assert client.post("/invocations", data=line, content_type=content_type).status_code == 200
    assert client.post("/invocations", data=line * 2, content_type=content_type).status_code == 424
