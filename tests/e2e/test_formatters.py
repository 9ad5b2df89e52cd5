"""A model.py with input and output formatters for the built-in text generation, on the port that SageMaker sets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.handler_engine import LMI_FILES
from tests.support.server import Server

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("formatters")
    shutil.copy(LMI_FILES / "formatters" / "model.py", folder)
    properties = f"engine=MPI\noption.model_id={tiny_model}\noption.kv_cache_gb=0.1\n"
    environment = {"SAGEMAKER_BIND_TO_PORT": "{port}"}
    with Server(folder, properties, environment=environment, pass_port=False) as server:
        yield server


def test_request_and_response_pass_through_the_formatters(server: Server) -> None:
    answer = server.client.post("/invocations", {"inputPrompt": "Once", "parameters": {"details": True}})
    assert answer.status == 200, answer.body
    details = answer.json()["mine"]["details"]
    assert (details["inputs"], details["generated_tokens"]) == ("Once", 3)


def test_each_record_of_a_stream_is_rewritten(server: Server) -> None:
    answer = server.client.post("/invocations", {"inputPrompt": "Once", "stream": True})
    records = [json.loads(line)["mine"] for line in answer.body.splitlines()]
    assert len(records) == 3
    assert "generated_text" in records[-1]


def test_a_formatter_error_fails_only_its_own_request(server: Server) -> None:
    answer = server.client.post("/invocations", {"inputs": "x", "parameters": 5})
    assert answer.status == 424
    assert "the input formatter failed" in answer.json()["error"]
    assert server.client.post("/invocations", {"inputPrompt": "Once"}).status == 200
