"""`GET` and `PATCH /admin/scheduler`: the token, what is accepted, what the engine says to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import SchedulerSettings
from engines.health import EngineState, Health
from lmi_server.apis.admin import FIELDS
from lmi_server.properties.options import by_name
from tests.lmi_server.conftest import MakeClient
from tests.lmi_server.fakes import ADMIN_TOKEN, FakeEngine

PATH = "/admin/scheduler"
IN_FORCE = {
    "max_rolling_batch_size": 32,
    "max_rolling_batch_prefill_tokens": 256,
    "max_num_batched_tokens": 256,
    "scheduling_policy": "fcfs",
    "enable_chunked_prefill": True,
    "waiting_served_ratio": 0.3,
    "max_waiting_tokens": 20,
    "waiting_steps": 0,
    "job_queue_size": 1000,
    "max_queued_tokens": None,
}


AUTHORIZATION = f"Bearer {ADMIN_TOKEN}"


def with_token(client: FlaskClient) -> FlaskClient:
    client.environ_base["HTTP_AUTHORIZATION"] = AUTHORIZATION
    return client


@pytest.fixture
def client(client: FlaskClient) -> FlaskClient:
    """Sends the token with every request."""
    return with_token(client)


def error(reply: TestResponse, status: int) -> str:
    assert reply.status_code == status
    body = reply.get_json()
    assert set(body) == {"error", "code"}
    assert body["code"] == status
    return str(body["error"])


def test_every_option_and_every_setting_is_in_the_table() -> None:
    assert set(FIELDS) <= set(by_name())
    assert set(FIELDS.values()) == set(SchedulerSettings.__slots__)


def test_get_shows_what_is_in_force(client: FlaskClient) -> None:
    assert client.get(PATH).get_json() == IN_FORCE


def test_patch_changes_what_it_names_and_shows_the_result(client: FlaskClient, engine: FakeEngine) -> None:
    changes: dict[str, Any] = {
        "max_rolling_batch_size": 4,
        "max_rolling_batch_prefill_tokens": 128,
        "scheduling_policy": "fair",
        "enable_chunked_prefill": False,
        "waiting_served_ratio": 1,
        "max_waiting_tokens": 5,
        "waiting_steps": 2,
        "job_queue_size": 10,
        "max_queued_tokens": 5000,
    }
    assert client.patch(PATH, json=changes).get_json() == {**IN_FORCE, **changes}
    assert engine.settings == SchedulerSettings(4, 128, 256, 10, 5000, "fair", False, 1.0, 5, 2)
    assert client.patch(PATH, json={"max_queued_tokens": None}).get_json()["max_queued_tokens"] is None
    assert client.patch(PATH, json={}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"max_rolling_batch_size": 0}, ["max_rolling_batch_size", "0", "from 1 to 4096"]),
        ({"max_rolling_batch_size": "8"}, ["max_rolling_batch_size", '"8"', "an integer"]),
        ({"max_rolling_batch_size": 8.0}, ["max_rolling_batch_size", "8.0", "an integer"]),
        ({"max_rolling_batch_size": True}, ["max_rolling_batch_size", "true", "an integer"]),
        ({"max_rolling_batch_size": None}, ["max_rolling_batch_size", "null", "an integer"]),
        ({"max_rolling_batch_size": 10**400}, ["max_rolling_batch_size", "from 1 to 4096"]),
        ({"max_num_batched_tokens": -1}, ["max_num_batched_tokens", "-1"]),
        ({"scheduling_policy": "fifo"}, ["scheduling_policy", "fifo", "fcfs"]),
        ({"scheduling_policy": 1}, ["scheduling_policy", "1", "fcfs"]),
        ({"enable_chunked_prefill": "true"}, ["enable_chunked_prefill", "true or false"]),
        ({"waiting_served_ratio": -0.1}, ["waiting_served_ratio", "-0.1", "from 0"]),
        ({"max_queued_tokens": 0}, ["max_queued_tokens", "0", "null for no limit"]),
        ({"batch_size": 4}, ["batch_size", "4", "known", "max_rolling_batch_size"]),
        ({"max_rolling_batchsize": 4}, ["did you mean 'max_rolling_batch_size'"]),
        ({"block_size": 16}, ["block_size"]),
        ([1], ["body", "a JSON object"]),
    ],
)
def test_what_is_not_accepted_changes_nothing(
    changes: Any, mentions: list[str], client: FlaskClient, engine: FakeEngine
) -> None:
    if isinstance(changes, dict):
        changes = {"job_queue_size": 7, **changes}
    text = error(client.patch(PATH, json=changes), 400)
    for mention in mentions:
        assert mention in text
    assert client.get(PATH).get_json() == IN_FORCE


def test_what_the_engine_refuses_is_told_by_the_options_name(client: FlaskClient, engine: FakeEngine) -> None:
    engine.refused = {"max_num_seqs": "given 64; accepted: at most 32, for which memory was set aside"}
    text = error(client.patch(PATH, json={"max_rolling_batch_size": 64, "job_queue_size": 7}), 400)
    assert text == (
        "max_rolling_batch_size: given 64; accepted: at most 32, for which memory was set aside; nothing was changed"
    )
    assert client.get(PATH).get_json() == IN_FORCE


@pytest.mark.parametrize("method", ["GET", "PATCH", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {ADMIN_TOKEN}x",
        f"Bearer {ADMIN_TOKEN[:-1]}",
        f"Bearer {ADMIN_TOKEN.lower()}",
        "Bearer \xff\udcff",
        f"Basic {ADMIN_TOKEN}",
        ADMIN_TOKEN,
    ],
)
def test_nothing_is_shown_or_changed_without_the_token(
    method: str, authorization: str | None, make_client: MakeClient, engine: FakeEngine
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    local = {"REMOTE_ADDR": "127.0.0.1"}
    reply = make_client().open(
        PATH, method=method, json={"job_queue_size": 7}, headers=headers, environ_overrides=local
    )
    assert reply.status_code == 401
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    if method != "HEAD":
        assert "LMI_ADMIN_TOKEN" in error(reply, 401)
        assert ADMIN_TOKEN not in reply.text
    assert engine.settings == SchedulerSettings(32, 256, 256, 1000)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_the_token_is_enough_from_anywhere(scheme: str, make_client: MakeClient) -> None:
    """What a proxy or `docker run -p` makes of addresses and hosts does not matter."""
    headers = {
        "Authorization": f"{scheme} {ADMIN_TOKEN}",
        "Host": "models.example",
        "X-Forwarded-For": "10.0.0.7",
    }
    reply = make_client().get(PATH, headers=headers, environ_overrides={"REMOTE_ADDR": "172.17.0.1"})
    assert reply.get_json() == IN_FORCE


def test_without_a_token_in_the_environment_there_are_no_such_routes(make_client: MakeClient) -> None:
    for sent in (AUTHORIZATION, "Bearer ", "Bearer"):
        client = make_client(admin_token="")
        client.environ_base["HTTP_AUTHORIZATION"] = sent
        for reply in (client.get(PATH), client.patch(PATH, json={"job_queue_size": 7})):
            assert error(reply, 404) == "no such path"


def test_engine_python_has_no_scheduler(make_client: MakeClient, engine: FakeEngine) -> None:
    engine.settings = None
    client = with_token(make_client(engine_kind="Python"))
    for reply in (client.get(PATH), client.patch(PATH, json={})):
        assert "engine=Python has no scheduler settings" in error(reply, 404)


def test_an_engine_that_does_not_answer(client: FlaskClient, engine: FakeEngine) -> None:
    engine.answers = False
    assert "did not answer within 10 s" in error(client.get(PATH), 503)
    assert "may still take effect" in error(client.patch(PATH, json={"job_queue_size": 7}), 503)


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_only_a_ready_engine_is_asked(state: EngineState, client: FlaskClient, engine: FakeEngine) -> None:
    engine.state = Health(state, "because", 0.0)
    reply = client.patch(PATH, json={"job_queue_size": 7})
    assert engine.state.summary() in error(reply, 503)
    assert "Retry-After" in reply.headers


def test_other_methods(client: FlaskClient) -> None:
    assert "GET" in error(client.post(PATH, json={}), 405)


def test_the_copies_are_listed(client: FlaskClient, engine: FakeEngine) -> None:
    up, down = Health(EngineState.READY, "", 0.0), Health(EngineState.FAILED, "killed", 0.0)
    first = {"copy": 1, "serves": True, "state": "ready", "reason": "ready"}
    second = {"copy": 2, "serves": False, "state": "failed", "reason": "the engine has failed: killed"}
    assert client.get("/admin/copies").get_json() == {"copies": [first]}
    engine.state = replace(up, copies=(up, down))
    assert client.get("/admin/copies").get_json() == {"copies": [first, second]}
    error(client.get("/admin/copies", headers={"Authorization": ""}), 401)
