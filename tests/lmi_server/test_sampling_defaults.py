"""Sampling defaults: OpenAI bodies use OpenAI's and the model's defaults, other bodies are greedy."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from engines.core import SamplingParams
from lmi_server.app import create_app
from lmi_server.config import ServerConfig
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import refusal_of
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, says, web_config
from tests.support.logs import Logs

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
OPENAI = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/invocations", CHAT),
    ("/predictions/m", CHAT),
]
GREEDY = [("/invocations", {"inputs": "Hi"}), ("/invocations", {"prompt": "Hi"})]


class Server:
    """A server of a model folder with the given generation_config.json."""

    def __init__(self, folder: Path, generation_config: Any, option: str = "auto") -> None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
        text = TextModel.from_folder(folder)
        self.engine = FakeEngine(says(ANSWER))
        config = web_config(folder, ServerConfig(generation_config=option))
        self.client = create_app(config, self.engine, text).test_client()

    def sampling(self, path: str, body: dict[str, Any], **fields: Any) -> SamplingParams:
        """Send a request. Returns the sampling parameters that reach the engine."""
        own = {"parameters": fields} if "inputs" in body else fields
        reply = self.client.post(path, json={**body, **own})
        assert reply.status_code == 200, reply.text
        return self.engine.sampling


MODEL = {
    "eos_token_id": 2,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_new_tokens": 5,
    "typical_p": 0.5,
}


summary = attrgetter("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "typical_p")


@pytest.mark.parametrize(("generation_config", "option"), [({"eos_token_id": 2}, "auto"), (MODEL, "vllm")])
def test_without_a_temperature_openai_bodies_sample_and_others_are_greedy(
    generation_config: dict[str, Any], option: str, own_folder: Path
) -> None:
    server = Server(own_folder, generation_config, option)
    for path, body in OPENAI:
        assert summary(server.sampling(path, body)) == (1.0, 1.0, 0, 0.0, 1.0, 1.0), path
        assert summary(server.sampling(path, body, top_k=3))[:3] == (1.0, 1.0, 3)
        assert server.sampling(path, body, temperature=None).temperature == 1.0
        assert server.sampling(path, body, temperature=0).plain
        assert server.sampling(path, body, do_sample=False).plain
        assert server.sampling(path, body, top_p=0).plain
    for path, body in GREEDY:
        assert server.sampling(path, body).plain
        assert server.sampling(path, body, top_k=3).greedy
        assert server.sampling(path, body, do_sample=True).temperature == 1.0


def test_generation_config_sets_the_defaults_of_openai_bodies_only(own_folder: Path, logs: Logs) -> None:
    server = Server(own_folder, MODEL)
    assert "option.generation_config=vllm" in logs.text
    for path, body in OPENAI:
        assert summary(server.sampling(path, body)) == (0.6, 0.9, 20, 0.05, 1.1, 1.0), path
        explicit = {"temperature": 0.3, "top_p": 1.0, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
        assert summary(server.sampling(path, body, **explicit)) == (0.3, 1.0, 0, 0.0, 1.0, 1.0)
        greedy = server.sampling(path, body, temperature=0)
        assert (greedy.temperature, greedy.repetition_penalty) == (0.0, 1.1)
        assert server.sampling(path, body).max_new_tokens != 5
    for path, body in GREEDY:
        assert server.sampling(path, body).plain
        assert server.sampling(path, body, do_sample=True).temperature == 1.0


def test_invalid_defaults_are_ignored_with_a_warning(own_folder: Path, logs: Logs) -> None:
    server = Server(own_folder, {**MODEL, "temperature": -1, "top_p": "high", "top_k": None})
    assert summary(server.sampling(*OPENAI[0])) == (1.0, 1.0, 0, 0.05, 1.1, 1.0)
    warnings = logs.warnings
    assert [message.split(": ")[2] for message in warnings] == ["temperature", "top_p"]


def test_beam_search_ignores_the_default_temperature(own_folder: Path) -> None:
    server = Server(own_folder, MODEL)
    for path, body in OPENAI:
        params = server.sampling(path, body, num_beams=3)
        assert (params.num_beams, params.temperature) == (3, 0.0)
        refusal_of(server.client.post(path, json={**body, "num_beams": 3, "temperature": 0.5}))
