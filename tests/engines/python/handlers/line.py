"""The calls of a handler in this process, as its worker runs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from djl_python import Input

from engines.invocations import Invocation, InvocationOutput
from engines.python.handlers.calls import Calls
from engines.python.handlers.entry import find_handler, load_module
from engines.python.handlers.messages import Answered
from engines.python.messages import Forget
from tests.support.handler_engine import LMI_FILES, Reply

OF_THE_WORKER = {"model_dir": "/m", "device_id": "0", "tensor_parallel_degree": "2"}
LOADED = {**OF_THE_WORKER, "task": "shout"}
"""Properties of the call in which the handler loads its model."""


def make_input(body: bytes, content_type: str = "") -> Input:
    inputs = Input()
    inputs.content.add("data", body)
    inputs.properties["content-type"] = content_type
    return inputs


class Line:
    """The calls of a handler with a fake link that records outputs in order."""

    def __init__(self, handle: Callable[[Input], Any]) -> None:
        self.outputs: list[InvocationOutput] = []
        self.messages: list[Forget] = []
        """Messages from the dispatcher."""
        self.calls = Calls(handle, self, LOADED)  # type: ignore[arg-type]

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

    def ask(self, body: bytes | str | dict[str, Any], **headers: str) -> Reply:
        """Run a call with one request. Names of headers have `_` for `-`."""
        data = json.dumps(body) if isinstance(body, dict) else body
        data = data.encode() if isinstance(data, str) else data
        properties = {key.replace("_", "-"): value for key, value in headers.items()}
        self.outputs = []
        assert self.calls.run([Invocation("r0", 0.0, properties, (("data", data),))])
        return Reply("r0", self)  # type: ignore[arg-type]

    def next(self, timeout: float) -> InvocationOutput | None:
        return self.outputs.pop(0) if self.outputs else None


def load_file(name: str, entry: str = "model.py", function: str = "handle", **properties: str) -> Line:
    """Load the handler of a file in `lmi_files`. properties: options of the handler."""
    folder = LMI_FILES / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        module = load_module(folder / entry, folder)
        del sys.modules[module.__name__]
    handler = find_handler(module, function, {"model_dir": str(folder), **properties})
    line = Line(handler)
    line.calls.load()
    return line
