"""Unmodified handlers in the styles of LMI's documentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engines.python.handlers.slot import worker_command
from tests.engines.python.handlers.line import load_file
from tests.support.handler_engine import LMI_FILES, HandlerEngine, handler_config


def test_a_handler_gets_options_and_gpus_at_load_and_headers_with_each_request() -> None:
    config = handler_config("plain", task="shout")
    settings = replace(config.handler, worker_gpus=("4,5", "6,7"))
    commands = [worker_command(settings, Path("config"), number) for number in range(3)]
    assert [command[:2] for command in commands] == [
        ["env", f"CUDA_VISIBLE_DEVICES={gpus}"] for gpus in ("4,5", "6,7", "4,5")
    ]
    parallel = replace(config.parallel, device="cuda")
    engine = HandlerEngine(replace(config, handler=settings, parallel=parallel))
    try:
        engine.wait_ready()
        reply = engine.invoke({"inputs": "hello"}, Tenant="blue")
        assert reply.status == 200
        assert reply.json() == {
            "task": "shout",
            "folder": str(LMI_FILES / "plain"),
            "devices": ["4,5", "0"],
            "text": "HELLO",
            "tenant": "blue",
            "id": reply.name,
        }
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.headers["X-Amzn-SageMaker-Custom-Attributes"] == "seen=yes"
        reply = engine.invoke({"other": "hello"})
        assert reply.status == 424
        assert reply.json() == {"code": 424, "message": "invoke handler failure", "error": "'inputs'"}
    finally:
        engine.destroy()


def test_decorated_functions_make_a_handler() -> None:
    line = load_file("decorators")
    assert line.ask({"features": [1, 2, 3]}).json() == {"predictions": [321.0]}
    assert line.ask({"inputs": [[1, 0, 0], [0, 1, 0]]}).json() == {"predictions": [1.0, 10.0]}
    assert line.ask("no json").status == 424


def test_toolkit_functions_make_a_handler() -> None:
    line = load_file("toolkit", entry="inference.py")
    reply = line.ask({"inputs": [1, 2]}, Content_Type="application/json")
    assert (reply.json(), reply.headers) == ({"predictions": [3, 6]}, {"Content-Type": "application/json"})
    reply = line.ask("1,2\n3,4", Content_Type="text/csv", Accept="text/csv")
    assert (reply.body, reply.headers) == (b"3.0\n6.0\n9.0\n12.0", {"Content-Type": "text/csv"})
    assert "Unsupported content type: image/png" in line.ask("x", Content_Type="image/png").json()["error"]
