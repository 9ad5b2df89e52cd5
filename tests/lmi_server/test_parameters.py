"""The parameter table: any input is either used or refused by name, and never causes a server error."""

from __future__ import annotations

import json
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
from tests.lmi_server.fakes import FakeEngine, build_model_folder, says, web_config
from tests.support.examples import examples

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
LMI_NAMES = st.sampled_from(sorted(rows(Names.LMI)))
CHAT_NAMES = st.sampled_from(sorted(rows(Names.CHAT)))
COMPLETIONS_NAMES = st.sampled_from(sorted(rows(Names.COMPLETIONS)))


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    folder = build_model_folder(tmp_path_factory.mktemp("model"))
    text = TextModel.from_folder(folder)
    return create_app(web_config(folder), FakeEngine(says(text, "one two")), text).test_client()


@given(st.dictionaries(LMI_NAMES | st.text(max_size=12), JSON_VALUES, max_size=3))
def test_any_lmi_parameters(shared_client: FlaskClient, parameters: dict[str, Any]) -> None:
    reply = shared_client.post("/invocations", json={"inputs": "Hello", "parameters": parameters})
    assert reply.status_code in (200, 424)
    if reply.status_code == 424:
        assert any(f"parameters.{name}"[:200] in reply.get_json()["error"] for name in parameters)


def check_openai(client: FlaskClient, path: str, fields: dict[str, Any], prompt: dict[str, Any]) -> None:
    reply = client.post(path, json={**fields, **prompt})
    assert reply.status_code in (200, 400)
    if reply.status_code == 400:
        assert any(name in reply.get_json()["error"]["message"] for name in fields)


@given(st.dictionaries(CHAT_NAMES | st.text(max_size=12), JSON_VALUES, max_size=3))
def test_any_chat_fields(shared_client: FlaskClient, fields: dict[str, Any]) -> None:
    prompt = {"messages": [{"role": "user", "content": "Hello"}]}
    check_openai(shared_client, "/v1/chat/completions", fields, prompt)


@given(st.dictionaries(COMPLETIONS_NAMES | st.text(max_size=12), JSON_VALUES, max_size=3))
def test_any_completions_fields(shared_client: FlaskClient, fields: dict[str, Any]) -> None:
    check_openai(shared_client, "/v1/completions", fields, {"prompt": ["Hello", "Hi"]})


@given(
    JSON_VALUES | st.lists(st.integers() | st.text(max_size=2) | st.lists(st.integers(0, 400), max_size=3))
)
def test_any_prompt(shared_client: FlaskClient, prompt: Any) -> None:
    reply = shared_client.post("/v1/completions", json={"prompt": prompt})
    assert reply.status_code in (200, 400)
    if reply.status_code == 400:
        assert reply.get_json()["error"]["param"].startswith("prompt")


@given(JSON_VALUES)
def test_any_messages(shared_client: FlaskClient, messages: Any) -> None:
    assert shared_client.post("/v1/chat/completions", json={"messages": messages}).status_code == 400


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body(shared_client: FlaskClient, data: bytes) -> None:
    for path, status in (("/invocations", 424), ("/v1/chat/completions", 400), ("/v1/completions", 400)):
        assert shared_client.post(path, data=data).status_code == status


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


@pytest.mark.parametrize(
    ("unknown_name", "nearest"),
    [
        ("temprature", "temperature"),
        ("max_new_token", "max_new_tokens"),
        ("topk", "top_k"),
        ("detail", "details"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_name(unknown_name: str, nearest: str) -> None:
    with pytest.raises(InvalidField, match=f"did you mean '{nearest}'"):
        parse_parameters({unknown_name: 1}, Names.LMI)


def test_two_names_of_one_parameter_may_agree() -> None:
    parsed = parse_parameters({"max_tokens": 5, "max_completion_tokens": 5}, Names.CHAT)
    assert parsed["max_new_tokens"] == 5
