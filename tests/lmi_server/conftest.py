"""Fixtures for tests of the web process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from tokenizers import processors

from lmi_server.app import create_app
from lmi_server.config import ServerConfig
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.fakes import FakeEngine, build_model_folder, says, tokens, web_config

ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A model folder that the test may change."""
    return build_model_folder(tmp_path / "model")


@pytest.fixture(scope="session")
def text_model(model_folder: Path) -> TextModel:
    return TextModel.from_folder(model_folder)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(says(ANSWER))


@pytest.fixture
def echoing(engine: FakeEngine) -> FakeEngine:
    """An engine that answers each prompt with the tokens of the prompt, to detect mixed-up answers."""
    engine.script = lambda request: tokens(request, request.prompt_token_ids)
    return engine


MakeClient = Callable[..., FlaskClient]


@pytest.fixture
def make_client(model_folder: Path, text_model: TextModel, engine: FakeEngine) -> MakeClient:
    def make(server: ServerConfig | None = None, engine_kind: str = "MPI", **options: Any) -> FlaskClient:
        config = web_config(model_folder, server, engine_kind, **options)
        return create_app(config, engine, text_model).test_client()

    return make


@pytest.fixture
def client(make_client: MakeClient) -> FlaskClient:
    return make_client()


@pytest.fixture
def bos_client(own_folder: Path, engine: FakeEngine) -> FlaskClient:
    """A client of a model whose tokenizer adds BOS, token 0."""
    text = TextModel.from_folder(own_folder)
    text.tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return create_app(web_config(own_folder), engine, text).test_client()


Connection = tuple[socket.socket, socket.socket]


@pytest.fixture
def connection() -> Iterator[Connection]:
    """The two ends of a connection: the server's and the client's."""
    server, client = socket.socketpair()
    with server, client:
        yield server, client
