"""Handler calls inside the worker process: inputs, outputs, streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from djl_python import Input, Output
from djl_python.encode_decode import decode, encode
from djl_python.outputs import encode_json

from engines.invocations import Invocation
from engines.python.handlers.answers import CannotAnswer
from engines.python.messages import Forget
from tests.engines.python.handlers.line import LOADED, OF_THE_WORKER, Line, make_input


def test_a_batch_contains_the_parts_and_properties_of_each_request() -> None:
    seen: list[Input] = []

    def handle(inputs: Input) -> Output:
        seen.append(inputs)
        outputs = Output()
        for i, item in reversed(list(enumerate(inputs.get_batches()))):
            outputs.add(item.get_as_bytes() + item.properties["Accept"].encode(), batch_index=i)
        return outputs

    line = Line(handle)
    assert line.run(b"x", b"y")
    assert line.bodies() == {"r0": b"xa/0", "r1": b"ya/1"}
    (inputs,) = seen
    assert inputs.is_batch()
    assert inputs.get_batch_size() == 2
    assert inputs.get_content().key_at(1) == "batch_001.data"
    assert inputs.get_properties()["batch_001.Accept"] == "a/1"


@pytest.mark.parametrize(
    "handle",
    [
        lambda inputs: Output().add("one"),
        lambda inputs: Output().add("one", batch_index=0).add("two", batch_index=0),
        lambda inputs: Output().add_stream_content(iter("ab"), None),
        lambda inputs: Output().error("no"),
        lambda inputs: "text",
        lambda inputs: 1 / 0,
    ],
)
def test_a_batch_call_without_an_output_for_each_request_fails(handle: Callable[[Input], Any]) -> None:
    line = Line(handle)
    assert not line.run(b"x", b"y")
    assert line.outputs == []


def test_outputs_without_keys_are_matched_in_order() -> None:
    line = Line(lambda inputs: Output().add("one").add("two"))
    assert line.run(b"x", b"y")
    assert line.bodies() == {"r0": b"one", "r1": b"two"}


def test_a_finalizer_runs_after_the_response_and_its_failure_is_ignored() -> None:
    line: Line

    def finish(name: str) -> None:
        assert line.outputs[-1].last
        raise ValueError(name)

    line = Line(lambda inputs: Output().add("x", batch_index=0).add("y", batch_index=1).finalize(finish, "n"))
    assert line.run(b"x", b"y")
    line = Line(lambda inputs: Output().add("x").finalize(finish, "n"))
    assert line.run(b"x")
    assert [output.last for output in line.outputs] == [True]


@pytest.mark.parametrize("bodies", [(b"x",), (b"x", b"y")])
@pytest.mark.parametrize(
    "output", [lambda: Output(code=9), lambda: Output().add_stream_content(map(int, "x"), None)]
)
def test_a_finalizer_runs_once_after_an_output_that_cannot_be_sent(
    output: Callable[[], Output], bodies: tuple[bytes, ...]
) -> None:
    finished: list[str] = []
    Line(lambda inputs: output().finalize(finished.append, "n")).run(*bodies)
    assert finished == ["n"]


@pytest.mark.parametrize(
    ("returned", "status", "message", "text"),
    [
        (None, 204, "No Content", b""),
        (Output(418, "I'm a\r\nteapot: yes").add("stout"), 418, "I'm a teapot: yes", b"stout"),
        ({"not": "an Output"}, 424, "invoke handler failure", b"dict"),
        (Output(code=9), 424, "invoke handler failure", b"the status 9"),
        (MemoryError("no room"), 507, "no room", b""),
        (Output().add_property("a b:", "c"), 424, "invoke handler failure", b"the header name 'a b:'"),
    ],
)
def test_the_handler_sets_the_status(returned: Any, status: int, message: str, text: bytes) -> None:
    def handle(inputs: Input) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    reply = Line(handle).ask(b"x")
    head = reply.pieces[0].head
    assert head is not None
    assert (head.status, head.message) == (status, message)
    assert text in reply.body


def test_a_long_body_is_sent_in_parts() -> None:
    line = Line(lambda inputs: Output().add(bytes(40 << 20)))
    line.run(b"x")
    assert [len(output.body) >> 20 for output in line.outputs] == [16, 16, 8]
    assert [output.last for output in line.outputs] == [False, False, True]


def test_an_error_before_the_first_part_of_a_stream_sets_the_status() -> None:
    def fail() -> Any:
        raise ValueError("early")
        yield

    assert Line(lambda inputs: Output().add_stream_content(fail())).ask(b"x").status == 424


def test_a_stream_is_sent_in_the_parts_that_the_handler_yields() -> None:
    def handle(inputs: Input) -> Output:
        parts = ([word] for word in inputs.get_as_string().split())
        return Output().add_property("content-type", "a/b").add_stream_content(parts)

    reply = Line(handle).ask("to be")
    bodies = [piece.body for piece in reply.pieces]
    assert bodies == [b'{"outputs": ["to"]}\n', b'{"outputs": ["be"]}\n', b""]
    assert (reply.status, reply.headers) == (200, {"content-type": "a/b"})
    reply = Line(lambda inputs: Output().add_stream_content(iter("ab"), lambda part: part.upper())).ask("x")
    assert reply.body == b"AB"


def test_a_stream_whose_client_disconnects_is_stopped() -> None:
    stopped = False

    def forever() -> Iterator[str]:
        nonlocal stopped
        line.messages = [Forget("r0")]
        try:
            while True:
                yield "tick"
        finally:
            stopped = True

    line = Line(lambda inputs: Output().add_stream_content(forever(), None))
    assert line.ask(b"x").body == b"tick"
    assert stopped


def test_values_of_a_stream_without_a_formatter_are_sent_as_json() -> None:
    items: list[Any] = [{"a": 1}, 7, 0, "text", b"bytes", "", None]
    line = Line(lambda inputs: Output().add_stream_content(items, None))
    line.run(b"x")
    expected = [b'{\n  "a": 1\n}', b"7", b"0", b"text", b"bytes", b""]
    assert [output.body for output in line.outputs] == expected


def _with_part(value: Any) -> Output:
    output = Output()
    output.get_content().add("data", value)
    return output


@pytest.mark.parametrize("part", ["text", b"text", bytearray(b"text"), memoryview(b"text")])
def test_parts_of_text_or_bytes_are_sent_as_bytes(part: Any) -> None:
    assert Line(lambda inputs: _with_part(part)).ask(b"x").body == b"text"

    def handle(inputs: Input) -> Output:
        output = _with_part(part)
        output.get_content().add("data", part)
        return output

    line = Line(handle)
    assert line.run(b"x", b"y")
    assert list(line.bodies().values()) == [b"text", b"text"]


def test_a_part_that_is_neither_text_nor_bytes_fails_its_call() -> None:
    line = Line(lambda inputs: _with_part([1]))
    assert not line.run(b"x", b"y")
    reply = line.ask(b"x")
    assert reply.status == 424
    assert "a part of type list; it must be bytes or text" in reply.json()["error"]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("x \ud83d"), "x ?"), (UnprintableError(), "UnprintableError")],
)
def test_errors_that_utf8_cannot_encode_are_reported(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log would have the text too, and parallel test runs cannot pass it on.
    for name in ("calls", "answers"):
        monkeypatch.setattr(logging.getLogger(f"engines.python.handlers.{name}"), "disabled", True)

    def fail(inputs: Input) -> Output:
        raise error

    def stream() -> Iterator[str]:
        yield "first"
        raise error

    reply = Line(fail).ask(b"x")
    assert (reply.status, reply.json()["error"]) == (424, text)
    line = Line(lambda inputs: Output().add_stream_content(stream(), None))
    line.run(b"x")
    assert [output.body for output in line.outputs] == [b"first", b""]
    assert (line.outputs[-1].error_kind, line.outputs[-1].error_message) == ("request_failed", text)


@pytest.mark.parametrize(
    ("body", "content_type", "value"),
    [
        (b'{"a": [1]}', None, {"a": [1]}),
        (b'{"a": 1}', "application/json; charset=utf-8", {"a": 1}),
        ("grüße".encode(), "text/plain", {"inputs": ["grüße"]}),
        (b"inputs,b\n1,2\n3,4\n", "text/csv", {"inputs": ["1", "3"]}),
        (b"Question,context\nwhy,so\n", "text/csv", {"inputs": [{"Question": "why", "context": "so"}]}),
        (b"\x00", "a/b", {"inputs": b"\x00"}),
        (b"\xff", "application/octet-stream", {"inputs": b"\xff"}),
        (b"\x89PNG", "multipart/form-data; boundary=a", {"inputs": b"\x89PNG"}),
        ("grüße".encode(), "application/x-www-form-urlencoded", {"inputs": "grüße"}),
        (b'{"a": 1}', "application/jsonlines", {"a": 1}),
    ],
)
def test_content_is_decoded_by_content_type(body: bytes, content_type: str | None, value: Any) -> None:
    assert decode(make_input(body), content_type) == value


def test_a_csv_without_a_header_contains_numbers() -> None:
    def decoded(body: bytes) -> Any:
        return decode(make_input(body), "text/csv", require_csv_headers=False)

    assert decoded(b"1,2.5\n3,-4\n").tolist() == [[1.0, 2.5], [3.0, -4.0]]
    assert decoded(b"inputs\nx\n") == {"inputs": ["x"]}
    for body in (b"1,a\n", b"1,2\n3\n"):
        with pytest.raises(ValueError, match=r"the CSV needs a header with one of .*, or only numbers"):
            decoded(body)
    with pytest.raises(ValueError, match="the CSV needs a header with one of context, inputs, question"):
        decode(make_input(b"1,2\n"), "text/csv")


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        (numpy.array([[0.75, 0.25], [1, 2]]), b"0.75,0.25\n1.0,2.0\n"),
        ([numpy.array([1, 2]), (3, "a,b")], b'1,2\n3,"a,b"\n'),
        ([0.75, "x"], b"0.75\nx\n"),
        ("x", b"x\n"),
        ([{"label": "A", "score": 1}, {"label": "B", "score": 2}], b"label,score\nA,1\nB,2\n"),
        ({"label": "A", "score": 1}, b"label,score\nA,1\n"),
        ([], b""),
    ],
)
def test_predictions_are_written_as_csv(prediction: Any, text: bytes) -> None:
    output = encode(Output(), prediction, "text/csv")
    assert output.content.value_at(0) == text
    assert output.get_property("Content-Type") == "text/csv"


def test_json_supports_arrays_but_not_nan() -> None:
    assert encode_json({"a": numpy.float32(0.5), "b": numpy.arange(2)}) == b'{"a": 0.5, "b": [0, 1]}'
    with pytest.raises(ValueError, match="JSON"):
        encode_json(float("nan"))
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        encode_json(object())


def test_input_accessors() -> None:
    inputs = make_input(b"[1]", "application/json")
    assert inputs.get_property("Content-Type") == "application/json"
    assert inputs.get_data() == [1]
    assert inputs.get_batches() == [inputs]
    with pytest.raises(KeyError, match="other"):
        inputs.get_as_bytes("other")


def test_the_content_of_the_loading_call_is_none() -> None:
    assert Input().get_as_bytes() is None
    assert Input().get_as_bytes("data") is None
    assert Input().get_data() is None


def test_properties_are_found_in_any_case_and_bodies_can_be_changed() -> None:
    seen: list[Input] = []
    line = Line(lambda inputs: seen.extend(inputs.get_batches()))
    for count in (1, 2):
        properties = {"X-Amzn-Sagemaker-Adapter-Identifier": "a", "x": "y"}
        line.calls.run([Invocation(f"r{i}", 0.0, properties, (("data", b"x"),)) for i in range(count)])
    for inputs in seen:
        found, name = inputs.get_properties(), "X-Amzn-SageMaker-Adapter-Identifier"
        assert (name in found, found[name], found.get(name), found.get("z", "no")) == (True, "a", "a", "no")
        assert "z" not in found
        with pytest.raises(KeyError, match="z"):
            found["z"]
        numpy.frombuffer(inputs.get_as_bytes(), "u1")[0] = 65
        assert inputs.get_as_string() == "A"
    assert len(seen) == 3


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "No available memory for the cache blocks."])
def test_exhausted_memory_is_507(text: str) -> None:
    def fail(inputs: Input) -> Output:
        raise RuntimeError(text)

    assert Line(fail).ask(b"x").status == 507


def test_a_handler_that_is_not_awaited_cannot_load() -> None:
    async def load() -> None:
        pass

    pending = load()
    with pytest.raises(CannotAnswer, match=r"returned coroutine; .* option\.async_mode=true"):
        Line(lambda inputs: pending).calls.load()
    pending.close()


def test_a_client_cannot_make_a_request_look_like_a_batch() -> None:
    seen: list[Input] = []
    line = Line(lambda inputs: seen.extend(inputs.get_batches()))
    properties = {"batch_size": "3", "Batch_Size": "4", "Accept": "text/plain"}
    assert line.calls.run([Invocation("r0", 0.0, properties, (("data", b"x"),))])
    (inputs,) = seen
    assert not inputs.is_batch()
    assert inputs.get_as_bytes() == b"x"
    assert inputs.properties["Accept"] == "text/plain"


def test_a_client_cannot_make_a_request_of_a_batch_look_like_a_batch() -> None:
    seen: list[Input] = []
    line = Line(lambda inputs: seen.extend(inputs.get_batches()))
    properties = {"Batch_Size": "3", "Model_Dir": "/other", "Accept": "text/plain"}
    line.calls.run([Invocation(name, 0.0, properties, (("data", b"x"),)) for name in ("r0", "r1")])
    assert [inputs.is_batch() for inputs in seen] == [False, False]
    assert seen[1].properties == {"Accept": "text/plain"}


@pytest.mark.parametrize("bodies", [(b"x",), (b"x", b"y")])
def test_each_call_has_the_properties_of_its_worker(bodies: tuple[bytes, ...]) -> None:
    seen: list[dict[str, str]] = []
    line = Line(lambda inputs: seen.append(inputs.get_properties()))
    line.calls.load()
    line.run(*bodies)
    loaded, properties = seen
    assert loaded == LOADED
    assert OF_THE_WORKER.items() <= properties.items()
    assert "task" not in properties


def test_a_client_cannot_replace_the_properties_of_the_worker() -> None:
    seen: list[dict[str, str]] = []
    line = Line(lambda inputs: seen.append(inputs.get_properties()))
    line.calls.run([Invocation("r0", 0.0, {"model_dir": "/other", "Device_Id": "9"}, (("data", b"x"),))])
    assert seen == [OF_THE_WORKER]


def test_an_error_returned_by_the_first_call_is_an_error_of_the_load() -> None:
    line = Line(lambda inputs: Output().error("the model is too large", code=507))
    with pytest.raises(CannotAnswer, match=r"(?s)first call returned 507 .*the model is too large"):
        line.calls.load()


def test_a_request_aborted_before_its_call_is_not_served() -> None:
    served: list[Input] = []
    line = Line(served.append)
    line.messages = [Forget("r0")]
    assert line.run(b"x")
    assert served == []
