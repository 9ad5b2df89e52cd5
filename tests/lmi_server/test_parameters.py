"""The parameter table: any input is either used or refused by name, and never causes a server error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from lmi_server.apis.parameters.parse import parse_parameters
from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.table import PARAMETERS, rows
from lmi_server.app import create_app
from lmi_server.errors import InvalidField
from lmi_server.text.tokenizer import TextModel
from lmi_server.values.scalars import Float, Int
from tests.lmi_server.bodies import BODIES, refusal_of
from tests.lmi_server.fakes import FakeEngine, says, web_config
from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS, INVOCATIONS
from tests.support.examples import examples

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = {INVOCATIONS: Names.LMI, CHAT: Names.CHAT, COMPLETIONS: Names.COMPLETIONS}


@pytest.fixture(scope="module")
def shared_client(model_folder: Path, text_model: TextModel) -> FlaskClient:
    engine = FakeEngine(says("one two"))
    return create_app(web_config(model_folder), engine, text_model).test_client()


@pytest.mark.parametrize("path", NAMES)
@given(data=st.data())
def test_any_parameters(shared_client: FlaskClient, path: str, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(rows(NAMES[path]))) | st.text(max_size=12)
    parameters = data.draw(st.dictionaries(names, JSON_VALUES, max_size=3))
    own = {"parameters": parameters} if path == INVOCATIONS else parameters
    reply = shared_client.post(path, json={**own, **BODIES[path]})
    if reply.status_code != 200:
        prefix = "parameters." if path == INVOCATIONS else ""
        assert any(f"{prefix}{name}"[:200] in refusal_of(reply) for name in parameters)


@given(
    JSON_VALUES | st.lists(st.integers() | st.text(max_size=2) | st.lists(st.integers(0, 400), max_size=3))
)
def test_any_prompt(shared_client: FlaskClient, prompt: Any) -> None:
    reply = shared_client.post("/v1/completions", json={"prompt": prompt})
    if reply.status_code != 200:
        refusal_of(reply)
        assert reply.get_json()["error"]["param"].startswith("prompt")


@given(JSON_VALUES)
def test_any_messages(shared_client: FlaskClient, messages: Any) -> None:
    assert shared_client.post("/v1/chat/completions", json={"messages": messages}).status_code == 400


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body(shared_client: FlaskClient, data: bytes) -> None:
    for path in BODIES:
        refusal_of(shared_client.post(path, data=data))


NUMBERS = [
    (name, row)
    for names in Names
    for name, row in rows(names).items()
    if row.neutral is None and isinstance(row.type, Int | Float)
]


@pytest.mark.parametrize(
    ("name", "row"), NUMBERS, ids=[f"{name}-{row.type.maximum}" for name, row in NUMBERS]
)
def test_accepted_ranges_match_their_descriptions(name: str, row: Any) -> None:
    names = next(column for column in Names if name in row.names(column))
    step = 1 if isinstance(row.type, Int) else 1e-6
    refusals: list[str] = []

    def accepts(value: float) -> bool:
        try:
            return bool(parse_parameters({name: value}, names)[row.name] == value)
        except InvalidField as error:
            refusals.append(str(error))
            return False

    above = isinstance(row.type, Float) and row.type.exclude_minimum
    assert accepts(row.type.minimum + step * above)
    assert not accepts(row.type.minimum - step * (not above))
    if row.type.maximum is not None:
        assert accepts(row.type.maximum)
        assert not accepts(row.type.maximum + step)
    assert not accepts(True)
    assert all(row.type.accepted in refusal for refusal in refusals)


def test_names_are_unambiguous() -> None:
    for names in Names:
        all_names = [name for row in PARAMETERS for name in row.names(names)]
        assert len(all_names) == len(set(all_names))


def test_two_names_of_one_parameter_may_agree() -> None:
    parsed = parse_parameters({"max_tokens": 5, "max_completion_tokens": 5}, Names.CHAT)
    assert parsed["max_new_tokens"] == 5
