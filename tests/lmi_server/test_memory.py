"""Parts of a request that are freed before its answer is complete."""

from __future__ import annotations

import gc
import json

import pytest
from flask.testing import FlaskClient

from engines.core import Request, RequestOutput
from lmi_server.generation.answer_text import GenerationRequest
from tests.lmi_server.bodies import BODIES, PROMPT, post
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, says
from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS

MARKER = "a name that no other object has"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_without_an_effect_are_freed(
    path: str, stream: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    kept: list[object] = []

    def script(request: Request) -> list[RequestOutput]:
        kept.extend(each for each in gc.get_objects() if type(each) is dict and MARKER in each)
        return list(says(ANSWER)(request))  # type: ignore[arg-type]

    engine.script = script
    data = json.dumps({**BODIES[path], "stream": stream, "metadata": {MARKER: []}, "unknown": {MARKER: []}})
    assert client.post(path, data=data, content_type="application/json").status_code == 200
    assert len(engine.requests) == 1
    assert kept == []


@pytest.mark.parametrize(
    ("path", "parameters", "kept"),
    [
        (CHAT, {}, ""),
        (COMPLETIONS, {}, ""),
        (COMPLETIONS, {"echo": True}, PROMPT),
        ("/invocations", {}, ""),
        ("/invocations", {"details": True}, PROMPT),
        ("/invocations", {"return_full_text": True}, PROMPT),
    ],
)
def test_the_text_of_a_prompt_is_kept_if_the_answer_contains_it(
    path: str, parameters: dict[str, bool], kept: str, client: FlaskClient, engine: FakeEngine
) -> None:
    texts: list[str] = []

    def script(request: Request) -> list[RequestOutput]:
        requests = [each for each in gc.get_objects() if isinstance(each, GenerationRequest)]
        texts.extend(each.prompt for each in requests if each.prompt_token_ids is request.prompt_token_ids)
        return list(says(ANSWER)(request))  # type: ignore[arg-type]

    engine.script = script
    assert post(client, path, **parameters).status_code == 200
    assert texts == [kept]
