"""Handler calls inside the worker process: inputs, outputs, streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from djl_python import Input, Output
from djl_python.encode_decode import decode
from djl_python.outputs import encode_json

from engines.invocations import Invocation, InvocationOutput
from engines.python.handlers.calls import Calls
from engines.python.handlers.entry import FunctionHandler
from engines.python.handlers.messages import Answered
from engines.python.messages import Forget

OF_THE_WORKER = {"model_dir": "/m", "device_id": "0", "tensor_parallel_degree": "2"}
LOADED = {**OF_THE_WORKER, "task": "shout"}
"""Properties of the call in which the handler loads its model."""


class Line:
    """The calls of a handler with a fake link that records outputs in order."""

    def __init__(self, handle: Callable[[Input], Any], takes_batches: bool = True) -> None:
        self.outputs: list[InvocationOutput] = []
        self.messages: list[Forget] = []
        """Messages from the dispatcher."""
        handler = FunctionHandler(handle)
        handler.takes_batches = takes_batches
        self.calls = Calls(handler, self, LOADED)  # type: ignore[arg-type]

    def send(self, message: Answered) -> None:
        self.outputs += message.outputs

    def receive(self, timeout: float) -> Forget | None:
        return self.messages.pop(0) if self.messages else None

    def run(self, *bodies: bytes) -> bool:
        """Run a call and return whether it succeeded."""
        return self.calls.run(
            [
                Invocation(f"r{i}", 0.0, {"Accept": f"a/{i}"}, (("data", body),))
                for i, body in enumerate(bodies)
            ]
        )

    def bodies(self) -> dict[str, bytes]:
        bodies: dict[str, bytes] = {}
        for output in self.outputs:
            bodies[output.id] = bodies.get(output.id, b"") + output.body
        return bodies


def make_input(body: bytes, content_type: str = "") -> Input:
    inputs = Input()
    inputs.content.add("data", body)
    inputs.properties["content-type"] = content_type
    return inputs


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


def test_a_long_body_is_sent_in_parts() -> None:
    line = Line(lambda inputs: Output().add(bytes(40 << 20)))
    line.run(b"x")
    assert [len(output.body) >> 20 for output in line.outputs] == [16, 16, 8]
    assert [output.last for output in line.outputs] == [False, False, True]


def test_an_error_before_the_first_part_of_a_stream_sets_the_status() -> None:
    def fail() -> Any:
        raise ValueError("early")
        yield

    line = Line(lambda inputs: Output().add_stream_content(fail()))
    line.run(b"x")
    head = line.outputs[0].head
    assert head is not None
    assert head.status == 424


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
    line = Line(lambda inputs: _with_part(part))
    line.run(b"x")
    assert line.outputs[0].body == b"text"

    def handle(inputs: Input) -> Output:
        output = _with_part(part)
        output.get_content().add("data", part)
        return output

    line = Line(handle)
    assert line.run(b"x", b"y")
    assert [output.body for output in line.outputs] == [b"text", b"text"]


def test_a_part_that_is_neither_text_nor_bytes_fails_its_call() -> None:
    line = Line(lambda inputs: _with_part([1]))
    line.run(b"x")
    (output,) = line.outputs
    assert output.head is not None
    assert (output.head.status, output.last) == (424, True)
    assert b"a part of type list; it must be bytes or text" in output.body
    assert not line.run(b"x", b"y")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("x \ud83d"), b"x ?"), (UnprintableError(), b"UnprintableError")],
)
def test_errors_that_utf8_cannot_encode_are_reported(
    error: Exception, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log would have the text too, and parallel test runs cannot pass it on.
    for name in ("calls", "answers"):
        monkeypatch.setattr(logging.getLogger(f"engines.python.handlers.{name}"), "disabled", True)

    def fail(inputs: Input) -> Output:
        raise error

    def stream() -> Iterator[str]:
        yield "first"
        raise error

    line = Line(fail)
    line.run(b"x")
    (output,) = line.outputs
    assert output.head is not None
    assert (output.head.status, output.last) == (424, True)
    assert b'"error": "' + text + b'"' in output.body
    line = Line(lambda inputs: Output().add_stream_content(stream(), None))
    line.run(b"x")
    assert line.bodies() == {"r0": b'first{"error": "' + text + b'", "code": 424}\n'}
    assert line.outputs[-1].last


@pytest.mark.parametrize(
    ("body", "content_type", "value"),
    [
        (b'{"a": [1]}', None, {"a": [1]}),
        (b'{"a": 1}', "application/json; charset=utf-8", {"a": 1}),
        ("grüße".encode(), "text/plain", {"inputs": ["grüße"]}),
        (b"inputs,b\n1,2\n3,4\n", "text/csv", {"inputs": ["1", "3"], "b": ["2", "4"]}),
        (b"question,context\nwhy,so\n", "text/csv", {"inputs": {"question": ["why"], "context": ["so"]}}),
        (b"\x00", "a/b", b"\x00"),
    ],
)
def test_content_is_decoded_by_content_type(body: bytes, content_type: str | None, value: Any) -> None:
    assert decode(make_input(body), content_type) == value


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
    with pytest.raises(KeyError):
        inputs.get_as_bytes("other")
    with pytest.raises(KeyError):
        Input().get_as_bytes()


def test_a_client_cannot_make_a_request_look_like_a_batch() -> None:
    seen: list[Input] = []
    line = Line(lambda inputs: seen.extend(inputs.get_batches()))
    properties = {"batch_size": "3", "Accept": "text/plain"}
    assert line.calls.run([Invocation("r0", 0.0, properties, (("data", b"x"),))])
    (inputs,) = seen
    assert not inputs.is_batch()
    assert inputs.get_as_bytes() == b"x"
    assert inputs.properties["Accept"] == "text/plain"


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
    line.calls.run([Invocation("r0", 0.0, {"model_dir": "/other"}, (("data", b"x"),))])
    assert seen == [OF_THE_WORKER]


def test_a_request_aborted_while_another_runs_is_not_served() -> None:
    served: list[bytes] = []

    def handle(inputs: Input) -> Output:
        served.append(inputs.get_as_bytes())
        line.messages = [Forget("r1")] if len(served) == 1 else []
        return Output().add("done")

    line = Line(handle, takes_batches=False)
    assert line.run(b"x", b"y", b"z")
    assert served == [b"x", b"z"]
    assert list(line.bodies()) == ["r0", "r2"]
